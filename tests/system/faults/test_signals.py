"""Repeated stop requests during training: one checkpoint on all ranks, exit code 75, no lost step."""

import contextlib
import random
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pretrain import checkpoint
from tests.support import forked, runs
from tests.support.forked import Forked
from tests.system.soak import faults
from tests.system.soak.journal import last_step

STEPS, EVERY, EVALUATION = 60, 20, 6
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
AGAIN = (signal.SIGTERM, signal.SIGUSR1)  # a second Ctrl-C kills the run
# What makes the phase long enough to be met, and which steps end in it.
PHASES: dict[str, dict[str, Any]] = {
    "step": {},
    "evaluation": {"eval": {"every_steps": EVALUATION, "rows": 4000}},
    "save": {"checkpoint": {"every_steps": 1, "keep": 2}},
    "synchronous save": {"checkpoint": {"every_steps": 1, "keep": 2, "asynchronous": False}},
}
LEAD_SECONDS = 30.0


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.tiny_data(tmp_path_factory.mktemp("data"))


def config_of(data: Path, run: Path, phase: str) -> Path:
    settings = {"train__steps": STEPS, "checkpoint__every_steps": EVERY, "eval__every_steps": 1000, **PHASES[phase]}
    return runs.write_config(run.with_suffix(".yaml"), runs.tiny_config(data, run, **settings))


@pytest.fixture(scope="module")
def left_alone(data, tmp_path_factory) -> dict[int, float]:
    """The losses of a run that is not asked to stop; checkpoints and evaluations change none."""
    run = tmp_path_factory.mktemp("left-alone") / "run"
    done = runs.maskwright("train", config_of(data, run, "step"), "--procs", "2")
    assert done.returncode == 0, done.stderr
    return runs.losses(run)


def await_phase(phase: str, run: Path, command: Forked, rng: random.Random) -> None:
    """Wait until the run is in it."""
    step = rng.randint(2, 20)
    if phase == "evaluation":
        step += -step % EVALUATION
    runs.wait_for(lambda: last_step(run / "journal.jsonl") >= step)
    if "save" in phase:
        runs.wait_for(lambda: any(not path.name.endswith("old.tmp") for path in (run / "checkpoints").glob("*.tmp")))
    time.sleep(rng.uniform(0, 0.02))
    assert command.poll() is None, "the run was over"


def ask(number: signal.Signals, family: faults.Family, rng: random.Random) -> None:
    """Signal the command, a rank, or all of them."""
    everyone: list[Any] = [family.command, *family.ranks]
    chosen = rng.choice([everyone, family.ranks, [rng.choice(everyone)]])
    for victim in [family.command] if number == signal.SIGINT else chosen:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(number)


QUICK = [("step", 0), ("save", 0)]


@pytest.mark.parametrize(
    ("phase", "seed"),
    [
        *QUICK,
        *(
            pytest.param(phase, seed, marks=pytest.mark.slow)
            for phase in PHASES
            for seed in range(6)
            if (phase, seed) not in QUICK
        ),
    ],
)
def test_a_stop_in_any_phase_is_one_agreed_checkpoint_and_more_signals_change_nothing(
    data, left_alone, tmp_path, phase, seed
):
    run, rng = tmp_path / "run", random.Random(f"{phase} {seed}")
    config = config_of(data, run, phase)
    command = runs.start_maskwright(tmp_path / "log", "train", config, "--procs", "2")
    assert isinstance(command, Forked), "on GPUs nothing is forked"
    family = faults.find_family(command, 2)
    assert family
    await_phase(phase, run, command, rng)
    asked = time.monotonic()
    ask(rng.choice(SIGNALS), family, rng)
    while command.poll() is None:
        ask(rng.choice(AGAIN), family, rng)
        assert time.monotonic() - asked < LEAD_SECONDS
        time.sleep(rng.uniform(0, 0.1))
    assert command.poll() == 75, (tmp_path / "log").read_text()[-1000:]
    forked.assert_none_left()
    status, steps = runs.status(run), runs.losses(run)
    assert (status["state"], status["step"]) == ("stopped", max(steps))
    newest, path = checkpoint.committed(run / "checkpoints")[0]
    assert newest == max(steps), "steps were lost"
    assert checkpoint.verify(path) is None
    assert newest < STEPS, "it was not stopped"
    assert not (run / "STOP").exists()

    assert runs.maskwright("train", config, "eval.every_steps=1000", "--procs", "2").returncode == 0
    assert runs.losses(run) == left_alone
