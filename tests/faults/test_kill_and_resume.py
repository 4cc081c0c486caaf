"""Killed anywhere, a run goes on as if nothing had happened: the losses are bitwise those of an unbroken run."""

import random
import time

import psutil
import pytest

from pretrain.journal import read_journal
from tests.support import runs


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.tiny_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
    ("stage", "precision", "victim", "seed"),
    [
        (2, "bf16", 0, 1),
        pytest.param(1, "fp32", 1, 0, marks=pytest.mark.slow),
        pytest.param(3, "fp32", 1, 2, marks=pytest.mark.slow),
    ],
)
def test_sigkill_of_a_rank_then_resume_is_bitwise(data, tmp_path, stage, precision, victim, seed):
    settings = {"zero__stage": stage, "train__precision": precision}
    reference = runs.write_config(tmp_path / "a.yaml", runs.tiny_config(data, tmp_path / "a", **settings))
    unbroken = runs.maskwright("train", reference, "--procs", "2")
    assert unbroken.returncode == 0, unbroken.stdout + unbroken.stderr

    config = runs.write_config(tmp_path / "b.yaml", runs.tiny_config(data, tmp_path / "b", **settings))
    step = random.Random(seed).randint(9, 22)
    process = runs.start_maskwright(tmp_path / "b.log", "train", config, "--procs", "2")
    runs.wait_for_step(tmp_path / "b", step)
    runs.wait_for((tmp_path / "b/checkpoints/step-00000008").exists)
    ranks = runs.ranks_of(config)
    assert set(ranks) == {0, 1}
    runs.kill(ranks[victim])
    assert process.wait(timeout=60) != 0
    assert runs.status(tmp_path / "b")["state"] == "failed"
    psutil.wait_procs(list(ranks.values()), timeout=10)
    assert not runs.ranks_of(config)

    resumed = runs.maskwright("train", config, "--procs", "2")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert runs.status(tmp_path / "b")["state"] == "completed"
    assert "resumed after step" in resumed.stderr
    wanted = runs.losses(tmp_path / "a")
    assert sorted(wanted) == list(range(1, 25))
    assert runs.losses(tmp_path / "b") == wanted


def write_seconds(run) -> list[float]:
    entries = read_journal(run / "journal.jsonl")
    return [found for entry in entries if (found := entry.metrics.get("checkpoint/write_seconds")) is not None]


def test_sigkill_of_the_launcher_leaves_no_orphan(data, tmp_path):
    config = runs.write_config(tmp_path / "c.yaml", runs.tiny_config(data, tmp_path / "c", train__steps=100000))
    process = runs.start_maskwright(tmp_path / "c.log", "train", config, "--procs", "2")
    runs.wait_for_step(tmp_path / "c", 3)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while runs.ranks_of(config) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not runs.ranks_of(config)


def test_checkpoints_by_minutes_and_one_at_a_stop_which_exits_75(data, tmp_path):
    run, minutes = tmp_path / "d", 0.05
    settings = {"train__steps": 100_000, "checkpoint": {"every_steps": 100_000, "every_minutes": minutes}}
    config = runs.write_config(tmp_path / "d.yaml", runs.tiny_config(data, run, **settings))
    process = runs.start_maskwright(tmp_path / "d.log", "train", config, "--procs", "2")
    runs.wait_for_step(run, 3)
    runs.wait_for(lambda: len(write_seconds(run)) > 1)
    assert min(write_seconds(run)) < minutes * 60, "committed when it was written, not when the next one was due"
    assert runs.maskwright("stop", run).returncode == 0
    assert process.wait(timeout=60) == 75
    status = runs.status(run)
    assert status["state"] == "stopped"
    assert (run / "checkpoints" / f"step-{status['step']:08d}" / "manifest.json").exists()
