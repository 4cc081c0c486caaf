"""Optimizers follow their papers on whole parameters, for any split of them."""

import numpy as np
import pytest

from tests.pretrain.optim.optimizers_worker import CASES, SHAPE, STEPS
from tests.support.optimizers import LR, NAMES, Reference
from tests.support.ranks import run_ranks

WORKER = "tests.pretrain.optim.optimizers_worker"


def check(file) -> None:
    """A reference that is given the same gradients arrives at the same weights."""
    found = np.load(file)
    weights = {key.removeprefix("start "): found[key] for key in found.files if key.startswith("start ")}
    reference = Reference(file.name.split(".")[0], weights, SHAPE.stacked)
    for step in range(STEPS):
        reference.step({name: found[f"{step} {name}"] for name in weights})
        for name, wanted in reference.weights.items():
            error = np.abs(found[f"after {step} {name}"] - wanted) - 3e-7 * np.abs(wanted)  # plus fp32's rounding
            assert error.max() <= 3e-4 * LR, f"{file.name} step {step}: {name} is off by {error.max()}"
    for name, wanted in reference.average.items():
        np.testing.assert_allclose(found[f"ema {name}"], wanted, rtol=1e-4, atol=1e-4 * LR, err_msg=name)


@pytest.mark.parametrize(
    ("world_size", "cases"),
    [
        (2, "train"),
        pytest.param(1, "train", marks=pytest.mark.slow),
        pytest.param(2, "offload", marks=pytest.mark.slow),
    ],
)
def test_every_optimizer_under_every_stage(world_size, cases, tmp_path):
    run_ranks(WORKER, world_size, str(tmp_path), cases)
    files = sorted(tmp_path.glob("*.npz"))
    assert len(files) == len(CASES[cases])
    for file in files:
        check(file)


@pytest.mark.slow
def test_every_optimizer_over_parameters_cut_anywhere(tmp_path):
    run_ranks(WORKER, 4, str(tmp_path), "cut")
    files = sorted(tmp_path.glob("*.npz"))
    assert len(files) == len(NAMES)
    for file in files:
        check(file)


@pytest.mark.slow
def test_state_of_every_optimizer_goes_to_another_layout(tmp_path):
    run_ranks(WORKER, 2, str(tmp_path), "save")
    run_ranks(WORKER, 1, str(tmp_path), "load", "2", "3")
