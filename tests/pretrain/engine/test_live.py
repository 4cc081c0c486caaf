"""Shares of the ranks in the weights that ZeRO 3 partitions."""

import math
from types import SimpleNamespace

import torch

from pretrain.engine.deepspeed_state import own_share


def parameter(numel: int, ranks: int, rank: int) -> SimpleNamespace:
    """A rank's part, as DeepSpeed lays it out: rounded up, with whatever memory holds after the weight's end."""
    size = -(-numel // ranks)
    whole = torch.full((size * ranks,), math.nan)
    whole[:numel] = torch.arange(numel)
    part = whole[rank * size : (rank + 1) * size].clone()
    part.ds_numel = size  # type: ignore[attr-defined]
    return SimpleNamespace(ds_tensor=part, ds_numel=numel)


def test_shares_are_the_weight_without_its_padding() -> None:
    for numel, ranks in [(10, 3), (9, 3), (1, 4), (5, 4)]:
        shares = [own_share(parameter(numel, ranks, rank), rank) for rank in range(ranks)]
        assert torch.cat(shares).tolist() == [*range(numel)]
