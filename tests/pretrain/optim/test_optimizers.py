"""Optimizers follow their papers on whole parameters, under every ZeRO stage and for any split of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.engine import Engine
from pretrain.engine.resharding import exchange_weights, local_pieces
from pretrain.optim.optimizers import Muon
from tests.support import engine_steps
from tests.support.engine_steps import full_state, rank_batches, step_gradients
from tests.support.optimizers import LR, NAMES, Reference, settings
from tests.support.ranks import check_on_ranks

SHAPE = replace(engine_steps.SHAPE, intermediate=40, arch="modernbert")
# Optimizer, precision, and ZeRO's stage with what is offloaded.
CASES = {
    "train": [(name, "fp32", f"{stage}") for name in NAMES for stage in range(4)]
    + [("muon", "bf16", "1"), ("muon", "bf16", "3")],
    "offload": [(name, "fp32", f"{stage}-cpu") for name in NAMES for stage in (1, 2, 3)]
    + [("lamb", "bf16", "2-cpu"), ("muon", "bf16", "3-cpu")],
}
STEPS = 3


def start(name: str, precision: str, zero: str) -> Engine:
    encoder = engine_steps.model(shape=SHAPE)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(3)  # so that weight decay and trust ratios matter
    return Engine(engine_steps.config(precision, zero, optim=settings(name)), encoder)


def snapshot(engine: Engine) -> list[Tensor]:
    """Weights and state on this rank, and the weights that the model computes with."""
    engine.wait_for_weights()
    inner: Any = engine.deepspeed
    flats = [tensor for tensor, _ in local_pieces(inner)]
    states = [value for flat in flats for value in inner.basic_optimizer.state[flat].values()]
    low = [p.ds_tensor if hasattr(p, "ds_tensor") else p for p in inner.module.parameters()]
    whole = [p for p in inner.module.parameters() if p.numel()]  # of ZeRO 3 those that stay on every rank
    return [tensor.detach().clone() for tensor in [*flats, *states, *low, *whole]]


def same(before: list[Tensor], after: list[Tensor]) -> bool:
    return len(before) == len(after) and all(
        a.numpy(force=True).tobytes() == b.numpy(force=True).tobytes()
        for a, b in zip((t.float() for t in before), (t.float() for t in after), strict=True)
    )


def train(name: str, precision: str, zero: str) -> dict[str, np.ndarray]:
    engine = start(name, precision, zero)
    recorded = {f"start {key}": value for key, value in full_state(engine, None).items()}
    for step in range(STEPS):
        recorded |= {f"{step} {key}": value for key, value in step_gradients(engine, rank_batches(step), LR).items()}
        recorded |= {f"after {step} {key}": value for key, value in full_state(engine, None).items()}
    before, average = snapshot(engine), full_state(engine, "ema")
    exchange_weights(engine.deepspeed)
    for key, value in full_state(engine, None).items():
        assert np.array_equal(value, average[key])
    for parameter, value in zip(engine.deepspeed.module.parameters(), average.values(), strict=True):
        if parameter.numel():
            assert torch.equal(parameter, torch.from_numpy(value).to(parameter.dtype)), "the model computes with others"
    exchange_weights(engine.deepspeed)
    assert same(before, snapshot(engine)), f"{name} {precision} {zero}: weights are not restored"
    engine.release()
    return recorded | {f"ema {key}": value for key, value in average.items()}


def train_all(folder: str, cases: str) -> None:
    # In bf16 small singular values are noise; test_optim.py has the products, here it is about the parts.
    # Not if this is only imported: that process continues with other tests.
    Muon.orthogonalization_dtype = torch.float32  # type: ignore[assignment,method-assign]
    for name, precision, zero in CASES[cases]:
        recorded = train(name, precision, zero)
        if dist.get_rank() == 0:
            np.savez(Path(folder) / f"{name}.{precision}-{zero}.npz", **recorded)


def check(file: Path) -> None:
    """A reference that is given the same gradients arrives at the same weights."""
    recorded = np.load(file)
    weights = {key.removeprefix("start "): recorded[key] for key in recorded.files if key.startswith("start ")}
    reference = Reference(file.name.split(".")[0], weights, SHAPE.stacked)
    for step in range(STEPS):
        reference.step({name: recorded[f"{step} {name}"] for name in weights})
        for name, wanted in reference.weights.items():
            error = np.abs(recorded[f"after {step} {name}"] - wanted) - 3e-7 * np.abs(wanted)  # plus fp32's rounding
            assert error.max() <= 3e-4 * LR, f"{file.name} step {step}: {name} is off by {error.max()}"
    for name, wanted in reference.average.items():
        np.testing.assert_allclose(recorded[f"ema {name}"], wanted, rtol=1e-4, atol=1e-4 * LR, err_msg=name)


@pytest.mark.parametrize(
    ("world_size", "cases"),
    [
        (2, "train"),
        pytest.param(1, "train", marks=pytest.mark.slow),
        pytest.param(3, "train", marks=pytest.mark.slow),  # which share nothing evenly
        pytest.param(2, "offload", marks=pytest.mark.slow),
    ],
)
def test_every_optimizer_under_every_stage(world_size, cases, tmp_path):
    check_on_ranks(train_all, world_size, tmp_path, cases)
    files = sorted(tmp_path.glob("*.npz"))
    assert len(files) == len(CASES[cases])
    for file in files:
        check(file)
