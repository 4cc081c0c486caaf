"""`maskwright track export`: TensorBoard and W&B have each value of the journal once, also after kills."""

import json
import math
import os
import signal
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pretrain.run import Journal, RunFolder
from tests.support import runs
from tests.support.tracked import expected

METRICS = ("train/loss", "train/grad_norm", "speed/tokens_per_second")


@pytest.fixture
def run(tmp_path) -> Path:
    """A run of 300 steps; steps 101 to 150 were repeated after a resume."""
    config = runs.tiny_config(runs.tiny_data(tmp_path / "data"), tmp_path / "run", track__uri="none", train__steps=2)
    runs.succeed("train", runs.write_config(tmp_path / "config.yaml", config))
    (tmp_path / "run" / "journal.jsonl").unlink()
    write(tmp_path / "run", [*range(1, 151), *range(101, 301)])
    return tmp_path / "run"


def write(run: Path, steps) -> None:
    journal = Journal(run / "journal.jsonl")
    for number, step in enumerate(steps):
        journal.append(step, dict.fromkeys(METRICS, 1 / step + number))
    journal.append(steps[-1], {"eval/loss": math.nan if steps[-1] == 300 else 0.5})
    journal.close()


def export(run: Path, to: str, *options: str) -> str:
    return runs.succeed("track", "export", run, "--to", to, *options).stdout


def of_tensorboard(run: Path) -> list[tuple[str, int, float]]:
    """(metric, step, value) of all event files, duplicates included."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    events = [event for file in run.glob("tensorboard/*") for event in LegacyEventFileLoader(str(file)).Load()]
    return sorted((value.tag, event.step, value.simple_value) for event in events for value in event.summary.value)


def of_wandb(run: Path) -> list[tuple[str, int, float]]:
    """The same of all offline runs."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for file in run.glob("wandb/offline-run-*/*.wandb"):
        for data in records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            items = record.history.item
            values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            step = values.get("training step")
            rows += [(name, step, value) for name, value in values.items() if name in (*METRICS, "eval/loss")]
    return sorted(rows)


def records(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: after a header of 7 bytes, LevelDB's log format with blocks of 32 KiB."""
    place, record = 7, b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


READ = {"tensorboard": of_tensorboard, "wandb": of_wandb}


def assert_complete(run: Path, kind: str) -> None:
    wanted = [row for row in expected(run) if kind == "tensorboard" or math.isfinite(row[2])]
    copied = READ[kind](run)
    assert [row[:2] for row in copied] == [row[:2] for row in wanted]
    assert [row[2] for row in copied] == pytest.approx([row[2] for row in wanted], rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("kind", READ)
def test_each_value_is_copied_once_also_by_a_copy_that_is_repeated(run, kind):
    assert f"{len(expected(run)):,} values added" in export(run, kind)
    assert_complete(run, kind)
    assert ": 0 values added" in export(run, kind)
    write(run, [*range(290, 321)])
    assert ": 61 values added" in export(run, kind)
    assert_complete(run, kind)


@pytest.mark.parametrize("kind", READ)
def test_a_killed_copy_leaves_nothing_twice(run, kind):
    RunFolder(run).write_status("running", 1, 2, "", "none")
    lock = RunFolder(run).lock()  # a run that goes on
    command = [sys.executable, "-m", "launchers.cli", "track", "export", str(run), "--to", kind, "--follow"]
    process = subprocess.Popen(command, env=os.environ | {"WANDB_SILENT": "true"}, start_new_session=True)
    pattern = "wandb/offline-run-*/*.wandb" if kind == "wandb" else "tensorboard/events*"
    runs.wait_for(lambda: sum(file.stat().st_size for file in run.glob(pattern)) >= 1000)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    lock.close()
    RunFolder(run).write_status("completed", 2, 2, "", "none")
    export(run, kind)
    assert_complete(run, kind)
    assert max(Counter(row[:2] for row in READ[kind](run)).values()) == 1


def test_tensorboard_follows_a_run_while_it_trains(tmp_path):
    run = tmp_path / "run"
    config = runs.tiny_config(runs.tiny_data(tmp_path / "data"), run, track__uri="none", train__steps=60)
    path = runs.write_config(tmp_path / "config.yaml", config)
    training = runs.start_maskwright(tmp_path / "log", "train", path, real=True)
    runs.wait_for((run / "mlflow_run.json").exists)
    export(run, "tensorboard", "--follow")
    assert training.wait(60) == 0
    export(run, "tensorboard")
    wanted = {row[:2] for row in expected(run) if not row[0].startswith("system/")}
    copied = [row[:2] for row in of_tensorboard(run) if not row[0].startswith("system/")]
    assert sorted(wanted) == sorted(copied)
    assert ("train/loss", 60) in wanted
