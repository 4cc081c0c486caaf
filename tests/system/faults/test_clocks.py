"""Wall clocks that differ between ranks and jump: steps, durations and order stay correct, and nothing is lost."""

import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pretrain import checkpoint
from pretrain.run import Entry, JournalReader, RunFolder
from tests.support import faulty, runs
from tests.system.soak.journal import read_lines
from tests.system.soak.soak import assert_tracked_once

DAY, STEPS = 86_400, 400


def set_clock(clocks: Path, rank: int, seconds: int) -> None:
    """In one call, so that no clock is read half written."""
    temporary = clocks / "new"
    temporary.write_text(str(seconds))
    temporary.replace(clocks / str(rank))


def config_of(data: Path, run: Path) -> Path:
    saving = {"every_steps": 50, "every_minutes": 30.0, "keep": 100}
    rare: dict[str, Any] = {"guard__hang_seconds": 30, "eval__every_steps": 1000}
    return runs.config_file(data, run, train__steps=STEPS, checkpoint=saving, **rare)


@pytest.mark.slow
def test_clocks_that_differ_and_jump(data, tmp_path):
    """Rank 1 is a day ahead; rank 0's clock jumps back an hour, then ahead a day, which no schedule by minutes sees."""
    clocks, run, right = tmp_path / "clocks", tmp_path / "run", tmp_path / "right"
    clocks.mkdir()
    set_clock(clocks, 1, DAY)
    process = faulty.start(tmp_path / "log", config_of(data, run), {"FAULTY_CLOCKS": str(clocks)})
    runs.wait_for_step(run, 60)
    set_clock(clocks, 0, -3600)
    runs.wait_for_step(run, 120)
    set_clock(clocks, 0, DAY)
    assert process.wait(180) == 0, (tmp_path / "log").read_text()[-3000:]

    lines = [entry for entry in read_lines(run / "journal.jsonl") if entry.batch]
    assert [entry.step for entry in lines] == list(range(1, STEPS + 1))
    jumps = [later.time - earlier.time for earlier, later in pairwise(lines)]
    assert sorted(round(jump / 3600) for jump in jumps if abs(jump) > 600) == [-1, 25], "the clock did not jump"
    assert_durations(JournalReader(run / "journal.jsonl").entries())
    assert [step for step, _ in checkpoint.committed(run / "checkpoints")] == list(range(STEPS, 0, -50))
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} - {"mlflow-artifacts"} == {"clocks", "run"}
    assert_tracked_once(RunFolder(run), STEPS)

    (tmp_path / "mlflow.db").unlink()
    runs.succeed("train", config_of(data, right), "--procs", "2")
    assert runs.losses(run) == runs.losses(right)


def assert_durations(entries: list[Entry]) -> None:
    speeds = [entry.metrics["speed/tokens_per_second"] for entry in entries]
    assert all(0 < speed < 100 * statistics.median(speeds) for speed in speeds)
    assert all(0 <= entry.metrics["speed/data_wait"] <= 1 for entry in entries)
    name = "checkpoint/write_seconds"
    written = [entry.metrics[name] for entry in entries if name in entry.metrics]
    assert len(written) == STEPS // 50
    assert all(0 < seconds < 60 for seconds in written)
