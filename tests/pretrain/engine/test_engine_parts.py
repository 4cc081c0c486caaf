"""Parts of the engine alone: sums of a step and of squares, gradients and weights in DeepSpeed, slow precisions."""

import math
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pretrain.engine import StepSums, slow_precision
from pretrain.engine.deepspeed_state import all_finite, own_share
from pretrain.engine.flat_gradients import FlatGradients

OBJECTIVES = 2
OF_EACH = {"predictions": (5.0, 9.0), "weights": (2.5, 9.0), "compute_seconds": (0.5, 0.25)}
SUMS = StepSums(20.0, 1.0, 2.0**52 + 1, 7e9, stop=1.0, written=2.0, save_due=0.0, **OF_EACH)


def test_sums_of_ranks_are_sums_of_each_number():
    total = torch.tensor([SUMS.pack(), SUMS.pack()], dtype=torch.float64).sum(0)
    doubled = {field.name: 2 * getattr(SUMS, field.name) for field in fields(SUMS)[:-3]}
    doubled |= {name: tuple(2 * value for value in values) for name, values in OF_EACH.items()}
    assert StepSums.unpack(total.tolist(), OBJECTIVES) == replace(SUMS, **doubled)
    assert StepSums.packed_weights(total, OBJECTIVES).tolist() == [5.0, 18.0]


def squares(*parts: torch.Tensor) -> torch.Tensor:
    gradients: Any = SimpleNamespace(parts=list(parts))
    return FlatGradients.squares(gradients)


def test_sums_of_squares_ask_the_device_for_nothing():
    """Tensors on "meta" have no values to be asked for."""
    total = squares(torch.empty(7, device="meta", dtype=torch.bfloat16), torch.empty(3, device="meta"))
    assert (total.device.type, total.dtype, total.shape) == ("meta", torch.float64, ())


def test_sums_over_millions_of_elements_keep_their_digits():
    numbers = torch.rand(5_000_011, generator=torch.Generator().manual_seed(0))
    assert squares(numbers).item() == pytest.approx(numbers.double().square().sum().item(), rel=1e-5)


def partitioned(numel: int, ranks: int, rank: int) -> SimpleNamespace:
    """A rank's part, as DeepSpeed lays it out: rounded up, with whatever memory holds after the weight's end."""
    size = -(-numel // ranks)
    whole = torch.full((size * ranks,), math.nan)
    whole[:numel] = torch.arange(numel)
    part = whole[rank * size : (rank + 1) * size].clone()
    part.ds_numel = size  # type: ignore[attr-defined]
    return SimpleNamespace(ds_tensor=part, ds_numel=numel)


def test_shares_are_the_weight_without_its_padding() -> None:
    for numel, ranks in [(10, 3), (9, 3), (1, 4), (5, 4)]:
        shares = [own_share(partitioned(numel, ranks, rank), rank) for rank in range(ranks)]
        assert torch.cat(shares).tolist() == [*range(numel)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_all_finite(dtype, value):
    large = torch.full((7,), min(1e18, torch.finfo(dtype).max)).to(dtype)
    sound = [large, torch.zeros(2, 3, dtype=dtype), -large]
    assert all_finite(sound, torch.device("cpu"))
    assert all_finite([], torch.device("cpu"))
    for tensor in sound:
        spoiled = tensor.clone()
        spoiled.view(-1)[-1] = value
        assert not all_finite([t if t is not tensor else spoiled for t in sound], torch.device("cpu"))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_who_trains_in_16_bits_without_instructions_for_them_is_warned(precision, monkeypatch):
    supported = f"_is_mkldnn_{precision}_supported"
    monkeypatch.setattr(torch.ops.mkldnn, supported, lambda: False)
    assert f"no instructions for {precision}" in slow_precision(precision, "cpu")
    assert slow_precision(precision, "cuda") is None
    assert slow_precision("fp32", "cpu") is None
    monkeypatch.setattr(torch.ops.mkldnn, supported, lambda: True)
    assert slow_precision(precision, "cpu") is None
