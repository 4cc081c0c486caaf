"""A mixture whose rows and batches change by phase, through the command line: resumed within a phase, replayed."""

from pathlib import Path
from typing import Any

import pytest

from pretrain.reporting import replay
from pretrain.run import Entry, JournalReader
from tests.support import runs
from tests.support.datasets import make_dataset

STEPS = 12
PHASES = [
    {"name": "small", "steps": 2, "train": {"global_batch_size": 4}},
    {"name": "start", "steps": 1, "train": {"global_batch_size": 8}},
    {"name": "long", "steps": 4, "data": {"seq_len": 64}, "train": {"global_batch_size": 4}},
    {"name": "short", "steps": 5, "data": {"seq_len": 16}, "train": {"global_batch_size": 24, "micro_batch_size": 6}},
]
LENGTHS = [32] * 3 + [64] * 4 + [16] * 5


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = runs.tiny_data(tmp_path_factory.mktemp("data"))
    make_dataset(folder / "short", [range(5, 12)] * 50, runs.VOCAB_SIZE)
    return folder


def train(data: Path, run: Path, steps: int, processes: int, **overrides: Any) -> list[Entry]:
    sources = [{"path": str(data / "train"), "weight": 3}, {"path": str(data / "short"), "weight": 1}]
    settings = {
        "train__steps": steps,
        "data__train": sources,
        "masking__rate": {"schedule": "linear", "start": 0.3, "end": 0.15},
        "schedule__decay_fraction": 0.0,
        "checkpoint__every_steps": 5,
        "checkpoint__keep": 3,
        "eval__every_steps": 4,
    }
    config = runs.tiny_config(data, run, **(settings | overrides)) | {"phases": PHASES}
    done = runs.maskwright("train", runs.write_config(run.with_suffix(".yaml"), config), "--procs", str(processes))
    assert done.returncode == 0, done.stderr
    return [entry for entry in JournalReader(run / "journal.jsonl").entries(batches=True) if entry.batch]


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> tuple[Path, list[Entry]]:
    run = tmp_path_factory.mktemp("runs") / "whole"
    return run, train(data, run, STEPS, processes=2)


def test_rows_change_where_the_stages_say(whole, data):
    _, entries = whole
    assert [entry.metrics["data/seq_len"] for entry in entries] == LENGTHS
    rates = [entry.metrics["train/mask_rate"] for entry in entries]
    assert rates == pytest.approx([0.3 - 0.15 * step / 11 for step in range(12)])
    dealt = [entry.batch["position"]["dealt"] for entry in entries]
    assert dealt == [0, 4, 8, 16, 20, 24, 28, 32, 56, 80, 104, 128]
    names = {name for name in entries[-1].metrics if name.startswith("data/epoch")}
    assert names == {f"data/epoch/{data.name}", "data/epoch/short"}
    assert any(source["past"] for entry in entries for source in entry.batch["position"]["sources"])
    assert sum("eval/loss" in entry.metrics for entry in entries) == 3


def test_a_run_goes_on_in_a_stage_with_other_processes(whole, data, tmp_path):
    first, wanted = whole
    start = {"run__resume": str(first / "checkpoints/step-00000005"), "run__trust_checkpoint": True}
    found = train(data, tmp_path / "run", STEPS, processes=1, zero__stage=2, **start)
    assert [entry.step for entry in found] == list(range(6, STEPS + 1))
    assert [entry.batch for entry in found] == [entry.batch for entry in wanted[5:]]
    losses = [entry.metrics["train/loss"] for entry in found]
    assert losses == pytest.approx([entry.metrics["train/loss"] for entry in wanted[5:]], rel=1e-4)
    answer = runs.maskwright("replay", tmp_path / "run", "--step", "9", "--diff", first)
    assert (answer.returncode, "saw the same 24 rows" in answer.stdout) == (0, True), answer.stderr


def test_every_step_is_replayed(whole):
    run, _ = whole
    for step in range(1, STEPS + 1):
        found = replay(run, step)
        assert found.rows.seq_len == LENGTHS[step - 1]
    assert len(replay(run, 9).rows) == 24
