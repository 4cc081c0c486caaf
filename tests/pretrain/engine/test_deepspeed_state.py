"""Gradients and weights inside DeepSpeed: without padding, finite."""

import math
from types import SimpleNamespace

import pytest
import torch

from pretrain.engine.deepspeed_state import all_finite, own_share


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
