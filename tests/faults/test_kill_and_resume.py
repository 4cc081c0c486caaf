"""Killed anywhere, a run goes on as if nothing had happened: the losses are bitwise those of an unbroken run."""

import random
import time
from pathlib import Path

import psutil
import pytest

from pretrain import checkpoint
from tests.support import runs

EVERY_STEPS = 8
LAYOUTS = {"zero-1": (1, "fp32"), "zero-2": (2, "bf16"), "zero-3": (3, "fp32")}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.tiny_data(tmp_path_factory.mktemp("data"))


def config_of(data: Path, run: Path, layout: str) -> Path:
    stage, precision = LAYOUTS[layout]
    settings = {"zero__stage": stage, "train__precision": precision, "checkpoint__every_steps": EVERY_STEPS}
    return runs.write_config(run.with_suffix(".yaml"), runs.tiny_config(data, run, **settings))


@pytest.fixture(scope="module")
def unbroken(data, tmp_path_factory):
    """The losses of a run that nobody kills, by layout."""
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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "layout", ["zero-2", pytest.param("zero-1", marks=pytest.mark.slow), pytest.param("zero-3", marks=pytest.mark.slow)]
)
def test_sigkill_of_a_rank_then_resume_is_bitwise(data, unbroken, tmp_path, layout, seed):
    run, wanted = tmp_path / "run", unbroken(layout)
    config = config_of(data, run, layout)
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
    assert last - kept <= EVERY_STEPS

    resumed = runs.maskwright("train", config, "--procs", "2")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert runs.status(run)["state"] == "completed"
    assert (f"resumed after step {kept}" in resumed.stderr) == (kept > 0)
    assert runs.losses(run) == wanted


@pytest.mark.parametrize("victim", ["maskwright", "deepspeed"])
def test_sigkill_of_a_launcher_is_a_failure_and_leaves_no_orphan(data, tmp_path, victim):
    """Of the command, or of the process that it starts, which starts the ranks."""
    run = tmp_path / "run"
    config = runs.write_config(tmp_path / "run.yaml", runs.tiny_config(data, run, train__steps=100_000))
    process = runs.start_maskwright(tmp_path / "log", "train", config, "--procs", "2", real=True)
    runs.wait_for_step(run, 3)
    (launcher,) = psutil.Process(process.pid).children()
    assert "deepspeed.launcher.launch" in launcher.cmdline()
    (launcher if victim == "deepspeed" else process).kill()
    assert process.wait(timeout=60) == (1 if victim == "deepspeed" else -9)
    deadline = time.monotonic() + 60
    while runs.ranks_of(config) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not runs.ranks_of(config)
    told = runs.maskwright("status", run, "--exit-code")
    if victim == "deepspeed":
        assert (told.returncode, runs.status(run)["state"]) == (1, "failed")
        assert "its processes ended without a word" in (tmp_path / "log").read_text()
    else:  # DeepSpeed's launcher lets the ranks stop
        assert (told.returncode, runs.status(run)["state"]) == (75, "stopped")


def test_stop_makes_a_checkpoint_and_exits_75(data, tmp_path):
    run = tmp_path / "d"
    config = runs.write_config(tmp_path / "d.yaml", runs.tiny_config(data, run, train__steps=100000))
    process = runs.start_maskwright(tmp_path / "d.log", "train", config, "--procs", "2", real=True)
    runs.wait_for_step(run, 3)
    assert runs.maskwright("stop", run).returncode == 0
    assert process.wait(timeout=60) == 75
    status = runs.status(run)
    assert status["state"] == "stopped"
    assert (run / "checkpoints" / f"step-{status['step']:08d}" / "manifest.json").exists()
