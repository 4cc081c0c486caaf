"""Resumed runs beside the same runs left alone: one matrix of what is trained and what interrupts it."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pretrain import checkpoint
from tests.support import runs
from tests.support.phase_runs import BOUNDARIES, STEPS, assert_same_training, phase_data, phase_settings
from tests.system.soak.faults import Fault
from tests.system.soak.soak import Soaked, soak

OFTEN = {"train__steps": 40, "checkpoint__every_steps": 5, "eval__every_steps": 7}


# Rates of masks that are drawn, dropout, two kinds of optimizer state, averaged weights.
DIFFUSION = {"objective": "diffusion", "train__steps": 24, "schedule__kind": "constant"}
DIFFUSION |= {"model": {"arch": "modernbert", "size": {"layers": 2, "hidden": 32, "heads": 2}, "dropout": 0.1}}
DIFFUSION |= {"optim": {"name": "muon", "lr": 0.02, "ema": 0.6}}
RECIPES: dict[str, dict[str, Any]] = {
    "zero_1": OFTEN | {"checkpoint__asynchronous": False},
    "zero_2_in_bf16_with_copies": OFTEN | {"zero__stage": 2, "train__precision": "bf16", "checkpoint__copies": True},
    "zero_3": OFTEN | {"zero__stage": 3, "eval__rows": 4000},
    "diffusion_with_dropout": OFTEN | DIFFUSION,
}
MATRIX = {
    "zero_1": [
        Fault("Ctrl-C", "start"),
        Fault("signals again and again", steps=8),
        Fault("Ctrl-C twice", steps=2),
        Fault("SIGKILL of all ranks", "commit"),
        Fault("SIGTERM to the command", "start"),
    ],
    "zero_2_in_bf16_with_copies": [
        Fault("SIGKILL of a rank", steps=7),
        Fault("SIGKILL of the launcher", "commit"),
        Fault("signals again and again", "commit"),
        Fault("SIGKILL of the command", steps=3),
    ],
    "zero_3": [
        Fault("SIGKILL of a rank", "evaluation", delay=0.02, rank=0),
        Fault("signals again and again", "evaluation"),
        Fault("STOP file", steps=2),
        Fault("SIGUSR1 to a rank", steps=4),
    ],
    "diffusion_with_dropout": [Fault("run.stop_after", steps=8), Fault("SIGKILL of a rank", steps=6)],
    "three_phases": [
        Fault("run.stop_after", steps=BOUNDARIES[0]),
        Fault("SIGKILL of a rank", steps=3),
        *[Fault("run.stop_after", steps=BOUNDARIES[1])] * 2,
        Fault("SIGKILL of a rank", steps=1),
    ],
}
SLOW = ("zero_3",)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return phase_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
    "recipe", [pytest.param(recipe, marks=pytest.mark.slow if recipe in SLOW else ()) for recipe in MATRIX]
)
def test_an_interrupted_run_equals_the_run_left_alone_bit_for_bit(data, tmp_path, recipe):
    """Losses, gradient norms, rates, batches, evaluations; at the end weights, optimizer state and MLflow's points."""
    recipes = RECIPES | {"three_phases": phase_settings(data)}
    soaked = Soaked.of(data, tmp_path, recipes[recipe])
    for fault in MATRIX[recipe]:
        soaked.interrupt(fault)
    soaked.complete()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "seed", "settings"),
    [
        (10, 0, {}),
        (24, 1, {"zero__stage": 2, "train__precision": "bf16"}),
        (10, 3, {"zero__stage": 3, "checkpoint__asynchronous": False}),
    ],
)
def test_a_run_interrupted_at_random_moments(faults, seed, settings, tmp_path):
    report = soak(tmp_path, faults, seed, **settings)
    assert report.faults.total() == faults
    assert len({moment for _, moment in report.faults}) == 4, "kills at every kind of moment"
    assert report.repeated > 0, "nothing was lost, so nothing was made good"


def test_checkpoints_by_minutes_are_committed_when_they_are_written(data, tmp_path):
    run, minutes, name = tmp_path / "run", 0.05, "checkpoint/write_seconds"
    settings = {"train__steps": 100_000, "checkpoint": {"every_steps": 100_000, "every_minutes": minutes}}
    config = runs.config_file(data, run, **settings)
    process = runs.start_maskwright(tmp_path / "log", "train", config, "--procs", "2")
    runs.wait_for_step(run, 3)
    runs.wait_for(lambda: len(runs.metric(run, name)) > 1)
    assert min(runs.metric(run, name).values()) < minutes * 60, "committed only when the next one was due"
    runs.succeed("stop", run)
    assert process.wait(timeout=60) == 75


# Other numbers of processes and ZeRO stages: sums have another order, so that losses agree to rounding of fp32.

ELASTIC = {"train__steps": STEPS, "checkpoint": {"every_steps": 8, "keep": 3}}
ELASTIC |= {"train__global_batch_size": 48}  # so that 24 steps are more than an epoch
Part = tuple[int, int, int]  # the last step, processes, ZeRO stage


def train(data: Path, run: Path, settings: dict[str, Any], parts: Sequence[Part]) -> list[str]:
    """Train a run in parts; what each part said on stderr."""
    said = []
    for last, processes, stage in parts:
        path = runs.config_file(data, run, **settings | {"zero__stage": stage})
        done = runs.maskwright("train", path, f"run.stop_after={last}", "--procs", str(processes))
        assert done.returncode == (0 if last == STEPS else 75), done.stdout + done.stderr
        said.append(done.stderr)
    return said


@pytest.fixture(scope="module")
def unbroken(data, tmp_path_factory) -> Path:
    """24 steps on two processes, ZeRO 1."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    train(data, run, ELASTIC, [(STEPS, 2, 1)])
    assert runs.losses(run)[STEPS] < 0.95 * runs.losses(run)[1], "it has learnt something that could differ"
    return run


@pytest.mark.slow
@pytest.mark.parametrize("layouts", [((2, 1), (4, 3), (1, 0)), ((2, 1), (4, 1), (1, 1)), ((2, 1), (2, 3), (2, 0))])
def test_other_processes_and_stages_train_the_same_rows(data, unbroken, tmp_path, layouts):
    run = tmp_path / "run"
    said = train(data, run, ELASTIC, [(8 * part, *layout) for part, layout in enumerate(layouts, start=1)])
    for part, (before, after) in enumerate(pairwise(layouts), start=1):
        changes = zip(("processes", "zero.stage"), before, after, strict=True)
        named = "; ".join(f"{name} was {old} and is {new}" for name, old, new in changes if old != new)
        assert f"step-{8 * part:08d} is resharded: {named}" in said[part]
    for _, path in checkpoint.committed(run / "checkpoints"):
        assert checkpoint.verify(path) is None, "a checkpoint itself is unchanged"
    assert_same_training(run, unbroken)
