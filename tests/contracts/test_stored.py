"""Stored data set and run: they load, and give the same losses.

`stored/` holds a data set, a run of two processes, stopped after step 3 of 6, and a preparation with its input. A
change that breaks this test ends the resume of existing runs: note it in the changelog. If a key was removed, remove it
from the stored manifest too.
"""

import shutil
from pathlib import Path

import pytest

from data_prep.format import Dataset
from data_prep.inspection import verify_data_set
from pretrain import checkpoint
from tests.support import runs
from tests.support.in_process import command

STORED = Path(__file__).with_name("stored")
LOSSES = [5.300480842590332, 5.307665109634399, 5.319342136383057]
RESUMED = [5.301097631454468, 5.266144752502441, 5.278334617614746]
"""Of steps 1 to 3, and of steps 4 to 6, in fp32 on a CPU; another CPU adds in another order."""
SETTINGS = {"train__steps": 6, "checkpoint": {"every_steps": 3}, "eval": {"every_steps": 3, "rows": 20}}


def config_of(tmp_path: Path) -> Path:
    return runs.write_config(tmp_path / "run.yaml", runs.tiny_config(STORED / "dataset", tmp_path / "run", **SETTINGS))


@pytest.mark.parametrize("name", ["train", "valid"])
def test_a_stored_data_set_is_intact_and_readable(name):
    folder = STORED / "dataset" / name
    assert list(verify_data_set(folder)) == []
    assert Dataset(folder).manifest.totals.documents == {"train": 60, "valid": 10}[name]


def test_a_stored_preparation_grows(tmp_path):
    """It keeps its threshold of near duplicates. Its scans, of another format, are made again, but not its shards."""
    shutil.unpack_archive(STORED / "preparation.tar.gz", tmp_path)
    out, first = tmp_path / "out", tmp_path / "a.jsonl"
    words = ["prep", "run", "--tokenizer", tmp_path / "tokenizer", "--out", out, "--deduplicate", "near"]
    before = {path.name: path.read_bytes() for path in (out / "shards").iterdir()}
    again = command(*words, "--input", first, "--workers", "1")
    assert (again.code, "already finished, 30 documents" in again.out) == (0, True), again.err
    lines = first.read_text().splitlines()
    (tmp_path / "b.jsonl").write_text("\n".join([*lines[:3], '{"text": "never mind the little others"}']))
    records = {path: path.read_bytes() for path in (out / "prep" / "tasks").iterdir()}
    grown = command(*words, "--input", first, "--input", tmp_path / "b.jsonl", "--workers", "1")
    assert (grown.code, ": 31 documents" in grown.out) == (0, True), grown.err
    assert "11 duplicate, 5 near duplicate" in grown.err
    assert {path: path.read_bytes() for path in records} == records
    assert {name: (out / "shards" / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("processes", [2, 1])
def test_a_stored_checkpoint_resumes_with_the_same_losses(tmp_path, processes):
    shutil.copytree(STORED / "run", tmp_path / "run")
    ((step, path),) = checkpoint.committed(tmp_path / "run" / "checkpoints")
    assert (step, checkpoint.verify(path)) == (3, None)
    runs.succeed("train", config_of(tmp_path), "--procs", str(processes))
    losses = runs.losses(tmp_path / "run")
    assert [losses[step] for step in (4, 5, 6)] == pytest.approx(RESUMED, rel=1e-5)


def test_a_new_run_has_the_golden_losses(tmp_path):
    runs.succeed("train", config_of(tmp_path), "--procs", "2")
    losses = runs.losses(tmp_path / "run")
    assert [losses[step] for step in range(1, 7)] == pytest.approx(LOSSES + RESUMED, rel=1e-5)
