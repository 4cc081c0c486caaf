"""A full disk during a run: no partial checkpoint, training continues, and the run ends with a one-line error."""

from pathlib import Path
from typing import Any

import pytest

from pretrain import checkpoint
from tests.support import runs
from tests.support.disks import fill, mounted

CHECKPOINT_ROOM = 300_000  # less than one takes, and enough for the journal


@pytest.fixture
def disk(tmp_path):
    """A file system of 8 MB."""
    with mounted(tmp_path / "disk", "8m") as folder:
        yield folder


def config_of(data: Path, disk: Path, **settings: Any) -> Path:
    """Of a run on the disk; the file and MLflow's database are beside it."""
    values = runs.tiny_config(data, disk / "run", track__uri=f"sqlite:///{disk.parent}/mlflow.db", **settings)
    return runs.write_config(disk.parent / "config.yaml", values)


def failures(run) -> list[float]:
    return list(runs.metric(run, "checkpoint/failed").values())


def test_training_goes_on_beside_a_full_disk_until_even_the_journal_cannot_be_written(data, tmp_path, disk):
    run, log = disk / "run", tmp_path / "log"
    saving = {"every_steps": 8, "max_failures": 10**6, "keep": 1}
    config = config_of(data, disk, train__steps=100_000, checkpoint=saving)
    filler = fill(disk, CHECKPOINT_ROOM)
    process = runs.start_maskwright(log, "train", config, "--procs", "2")
    runs.wait_for_step(run, 40)
    assert failures(run)[:3] == [1, 2, 3]
    runs.wait_for(lambda: "training, but the checkpoint of step" in runs.status(run)["reason"])
    assert runs.status(run)["state"] == "running"
    assert "No space left on device" in runs.status(run)["reason"]
    assert checkpoint.committed(run / "checkpoints") == []
    assert "warning: the checkpoint of step 8 was not saved" in log.read_text()

    filler.unlink()
    runs.wait_for(lambda: checkpoint.committed(run / "checkpoints"))
    fill(disk)
    assert process.wait(timeout=60) == 1
    status = runs.status(run)
    assert status["state"] == "failed", status
    assert "No space left on device" in status["reason"]
    assert "Traceback" not in log.read_text()
    ((_, newest),) = checkpoint.committed(run / "checkpoints")
    assert checkpoint.verify(newest) is None


def test_the_run_fails_after_max_failures(data, disk):
    run = disk / "run"
    config = config_of(data, disk, train__steps=100, checkpoint={"every_steps": 4, "max_failures": 2})
    fill(disk, CHECKPOINT_ROOM)
    done = runs.maskwright("train", config, "--procs", "1")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    reason = runs.status(run)["reason"]
    assert "failure 2 in a row, and checkpoint.max_failures is 2" in reason
    assert reason in done.stderr
    assert failures(run) == [1, 2]
    assert not list((run / "checkpoints").iterdir())


def test_a_disk_that_an_interrupted_save_has_filled_lets_the_run_start_again(data, disk):
    run = disk / "run"
    (run / "checkpoints" / "step-00000004.tmp").mkdir(parents=True)
    fill(run / "checkpoints" / "step-00000004.tmp", leave=8192)  # for status.json and the lock
    config = config_of(data, disk, train__steps=8)
    done = runs.maskwright("train", config, "--procs", "1")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000008"]
