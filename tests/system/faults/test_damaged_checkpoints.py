"""Damaged checkpoints of a real run on two processes: named, skipped by all ranks, never a silent restart at step 0."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pretrain import checkpoint
from tests.support import runs

STEPS = (8, 16, 24)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Path:
    """A run of 24 steps with a checkpoint every 8."""
    run = tmp_path_factory.mktemp("whole") / "run"
    done = train(data, run)
    assert done.returncode == 0, done.stderr
    assert [step for step, _ in checkpoint.committed(run / "checkpoints")] == [*reversed(STEPS)]
    return run


@pytest.fixture
def run(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def train(data: Path, run: Path, *overrides: str):
    path = runs.config_file(data, run, checkpoint={"every_steps": 8, "keep": 3}, eval__every_steps=100)
    return runs.maskwright("train", path, *overrides, "--procs", "2")


def flip(path: Path) -> Path:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)
    return path


def parts(run: Path, step: int, rank: int) -> Path:
    return run / f"checkpoints/step-{step:08d}/deepspeed/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def test_damage_of_one_rank_s_file_makes_all_ranks_fall_back_together(data, whole, run):
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
    assert runs.losses(run) == runs.losses(whole), "repeated steps are the same"
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
