"""Damaged checkpoints of a real run on two processes: named, skipped by all ranks, never a silent restart at step 0."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pretrain import checkpoint
from tests.support import runs
from tests.support.datasets import flip

STEPS = (8, 16, 24)


@pytest.fixture
def run(finished, tmp_path) -> Path:
    assert [step for step, _ in checkpoint.committed(finished / "checkpoints")] == [*reversed(STEPS)]
    return Path(shutil.copytree(finished, tmp_path / "run"))


def train(data: Path, run: Path):
    return runs.maskwright("train", runs.config_file(data, run, checkpoint__keep=3), "--procs", "2")


def parts(run: Path, step: int, rank: int) -> Path:
    return run / f"checkpoints/step-{step:08d}/deepspeed/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def test_damage_of_one_rank_s_file_makes_all_ranks_fall_back_together(data, finished, run):
    """The newest has a damaged file of rank 1, and the one before a sealed manifest with a state that is not valid."""
    file, second = flip(parts(run, 24, 1)), run / "checkpoints/step-00000016"
    saved = checkpoint.read(second)
    replace(saved, state=saved.state | {"position": {"dealt": "many", "sources": []}}).write()
    done = train(data, run)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert f"is damaged and skipped: {file} differs from its checksum" in done.stderr
    assert f"{second}: the state in its manifest is not valid: dealt is 'many'" in done.stderr
    assert "resumed after step 8" in done.stderr
    assert runs.losses(run) == runs.losses(finished), "repeated steps are the same"
    assert [step for step, _ in checkpoint.committed(run / "checkpoints")] == [*reversed(STEPS)]
    assert (run / "checkpoints/step-00000024.aside-1").is_dir(), "no data are deleted"


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start(data, run):
    before = [(run / name).read_bytes() for name in ("journal.jsonl", "status.json")]
    for step, rank in zip(STEPS, (0, 1, 0), strict=True):
        flip(parts(run, step, rank))
    done = train(data, run)
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "no checkpoint can be used" in error
    assert str(parts(run, 24, 0)) in error
    assert [(run / name).read_bytes() for name in ("journal.jsonl", "status.json")] == before
    assert [step for step, _ in checkpoint.committed(run / "checkpoints")] == [*reversed(STEPS)]
