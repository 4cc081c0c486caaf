"""Runs that are killed at any time and resumed: the losses equal an uninterrupted run bit for bit."""

import random
import time
from pathlib import Path

import psutil
import pytest

from pretrain import checkpoint
from pretrain.run import JournalReader
from tests.support import runs
from tests.support.checkpoints import must_be_committed

EVERY_STEPS = 8
LAYOUTS = {"zero-1": (1, "fp32"), "zero-2": (2, "bf16"), "zero-3": (3, "fp32")}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.tiny_data(tmp_path_factory.mktemp("data"))


def config_of(data: Path, run: Path, layout: str, asynchronous: bool = False) -> Path:
    stage, precision = LAYOUTS[layout]
    remote = f"file://{run.with_name('remote')}"
    saving = {"every_steps": EVERY_STEPS, "asynchronous": asynchronous, "remote": remote}
    settings = {"zero__stage": stage, "train__precision": precision, "checkpoint": saving}
    return runs.write_config(run.with_suffix(".yaml"), runs.tiny_config(data, run, **settings))


@pytest.fixture(scope="module")
def unbroken(data, tmp_path_factory):
    """The losses of an uninterrupted run, by layout."""
    found: dict[str, dict[int, float]] = {}

    def losses_of(layout: str) -> dict[int, float]:
        if layout not in found:
            run = tmp_path_factory.mktemp(layout) / "run"
            done = runs.maskwright("train", config_of(data, run, layout), "--procs", "2")
            assert done.returncode == 0, done.stdout + done.stderr
            found[layout] = runs.losses(run)
            assert sorted(found[layout]) == list(range(1, 25))
        return found[layout]

    return losses_of


QUICK = [("zero-2", 0), ("zero-2", 1)]


@pytest.mark.parametrize(
    ("layout", "seed"),
    [
        *QUICK,
        *(
            pytest.param(layout, seed, marks=pytest.mark.slow)
            for layout in LAYOUTS
            for seed in range(8)
            if (layout, seed) not in QUICK
        ),
    ],
)
def test_sigkill_of_a_rank_then_resume_is_bitwise(data, unbroken, tmp_path, layout, seed):
    run, wanted = tmp_path / "run", unbroken(layout)
    asynchronous = seed % 2 == 0
    config = config_of(data, run, layout, asynchronous)
    rng = random.Random(f"{layout} {seed}")
    victim, step = rng.randrange(2), rng.randint(1, 22)
    process = runs.start_maskwright(tmp_path / "log", "train", config, "--procs", "2")
    runs.wait_for_step(run, step)
    ranks = runs.ranks_of(config)
    assert set(ranks) == {0, 1}
    runs.kill(ranks[victim])
    assert process.wait(timeout=60) == 1
    assert runs.status(run)["state"] == "failed"
    psutil.wait_procs(list(ranks.values()), timeout=10)
    assert not runs.ranks_of(config)
    last = max(runs.losses(run))
    kept = max((found for found, _ in checkpoint.committed(run / "checkpoints")), default=0)
    assert kept >= must_be_committed(last, EVERY_STEPS, asynchronous)
    assert_readable(run / "checkpoints")
    assert_readable(run.with_name("remote"))

    resumed = runs.maskwright("train", config, "--procs", "2")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert runs.status(run)["state"] == "completed"
    assert (f"resumed after step {kept}" in resumed.stderr) == (kept > 0)
    assert runs.losses(run) == wanted
    assert_readable(run.with_name("remote"))
    assert checkpoint.committed(run.with_name("remote"))[0][0] == max(wanted)


def assert_readable(folder: Path) -> None:
    """Each checkpoint that looks committed is whole, byte for byte."""
    for _, path in checkpoint.committed(folder):
        if (path / "manifest.json").exists() or folder.name == "checkpoints":  # a copy without one does not count yet
            assert checkpoint.verify(path) is None


def write_seconds(run) -> list[float]:
    entries = JournalReader(run / "journal.jsonl").entries()
    return [found for entry in entries if (found := entry.metrics.get("checkpoint/write_seconds")) is not None]


@pytest.mark.parametrize("victim", [pytest.param("maskwright", marks=pytest.mark.slow), "starter"])
def test_sigkill_of_a_launcher_is_a_failure_and_leaves_no_orphan(data, tmp_path, victim):
    """Of the command, or of the process that it starts, which starts the ranks."""
    run = tmp_path / "run"
    config = runs.write_config(tmp_path / "run.yaml", runs.tiny_config(data, run, train__steps=100_000))
    process = runs.start_maskwright(tmp_path / "log", "train", config, "--procs", "2", real=True)
    runs.wait_for_step(run, 3)
    (launcher,) = psutil.Process(process.pid).children()
    assert "launchers.local.start_ranks" in launcher.cmdline()
    (launcher if victim == "starter" else process).kill()
    assert process.wait(timeout=60) == (1 if victim == "starter" else -9)
    deadline = time.monotonic() + 60
    while runs.ranks_of(config) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not runs.ranks_of(config)
    told = runs.maskwright("status", run, "--exit-code")
    if victim == "starter":
        assert (told.returncode, runs.status(run)["state"]) == (1, "failed")
        assert "its processes ended without a word" in (tmp_path / "log").read_text()
    else:  # the starter lets the ranks stop
        assert (told.returncode, runs.status(run)["state"]) == (75, "stopped")


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
