"""A disk that fails on one rank: quota or input/output error, at a write, flush or rename, in each file of a run."""

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from pretrain import checkpoint
from tests.support import faulty, runs

pytestmark = pytest.mark.slow


@pytest.fixture
def switch(tmp_path) -> Path:
    """While it is there, the disk fails."""
    path = tmp_path / "switch"
    path.touch()
    return path


def config_of(data: Path, run: Path, **settings: Any) -> Path:
    settings = {"checkpoint": {"every_steps": 5, "max_failures": 10**6}, "train__steps": 100_000, **settings}
    return runs.config_file(data, run, **settings)


def failures(run: Path) -> list[float]:
    return list(runs.metric(run, "checkpoint/failed").values())


@pytest.mark.parametrize(
    ("rank", "operation", "number"),
    [
        (1, "write", errno.EDQUOT),
        (1, "fsync", errno.EIO),
        (0, "rename", errno.EIO),
    ],
)
def test_a_disk_that_fails_one_rank_s_part_commits_nothing_and_training_goes_on(
    data, tmp_path, switch, rank, operation, number
):
    run, log = tmp_path / "run", tmp_path / "log"
    fault = faulty.disk(switch, rank, operation, number, str(run / "checkpoints/step-"))
    process = faulty.start(log, config_of(data, run), fault)
    try:
        runs.wait_for(lambda: (run / "journal.jsonl").exists() and len(failures(run)) >= 3, 300)
        assert failures(run)[:3] == [1, 2, 3]
        assert checkpoint.committed(run / "checkpoints") == []
        runs.wait_for(lambda: "training, but the checkpoint of step" in runs.status(run)["reason"])
        reason = runs.status(run)["reason"]
        assert runs.status(run)["state"] == "running"
        assert os.strerror(number) in reason
        assert rank == 0 or "(rank 1: " in reason
        switch.unlink()
        runs.wait_for(lambda: len(checkpoint.committed(run / "checkpoints")) > 1)
        runs.wait_for(lambda: runs.status(run)["reason"] == "training")
        runs.succeed("stop", run)
        assert process.wait(120) == 75
    finally:
        process.kill()
    for _, path in checkpoint.committed(run / "checkpoints"):
        assert checkpoint.verify(path) is None
    assert "warning: the checkpoint of step 5 was not saved (" in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("journal.jsonl", errno.ENOSPC),
        ("status.json", errno.EDQUOT),
        ("config.yaml", errno.ENOSPC),
        ("environment.json", errno.EIO),
    ],
)
def test_a_disk_that_fails_at_the_very_start_is_one_sentence(data, tmp_path, switch, name, number):
    """Rank 0's own files: no rank is left, the exit code says failed, and so does status.json if it can."""
    run, log = tmp_path / "run", tmp_path / "log"
    config = config_of(data, run)
    process = faulty.start(log, config, faulty.disk(switch, 0, "write", number, name))
    assert process.wait(300) == 1
    assert not runs.ranks_of(config)
    errors = re.findall("^error: .*$", log.read_text(), re.MULTILINE)
    assert len(errors) == 1, log.read_text()[-3000:]
    assert os.strerror(number) in errors[0]
    assert name in errors[0]
    assert "Traceback" not in log.read_text()
    if name != "status.json":
        assert runs.status(run)["state"] == "failed"
    if name != "journal.jsonl":  # which is written after a step, and what has been trained is saved
        assert not list((run / "checkpoints").glob("*"))


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT])
def test_a_journal_that_cannot_be_written_any_more_ends_the_run(data, tmp_path, switch, number):
    run, log = tmp_path / "run", tmp_path / "log"
    switch.unlink()
    process = faulty.start(log, config_of(data, run), faulty.disk(switch, 0, "write", number, "journal.jsonl"))
    runs.wait_for(lambda: (run / "journal.jsonl").exists() and len(runs.losses(run)) > 12, 300)
    switch.touch()
    assert process.wait(120) == 1
    status, steps = runs.status(run), runs.losses(run)
    assert status["state"] == "failed"
    assert f"journal.jsonl cannot be written ({os.strerror(number)})" in status["reason"]
    newest, path = checkpoint.committed(run / "checkpoints")[0]
    assert newest >= max(steps) - 5, "it has tried to save what it could"
    assert checkpoint.verify(path) is None
    assert "Traceback" not in log.read_text()
