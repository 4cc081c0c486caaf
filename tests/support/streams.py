"""Streams of random documents."""

import numpy as np
import torch

from pretrain.config.model import PRESETS
from pretrain.masking import IGNORED

ARCHS = tuple(PRESETS)  # all families of encoders


def stream(lengths: list[int]) -> dict[str, torch.Tensor]:
    """The tensors that an encoder takes for documents of these lengths, with random tokens from 5 to 89."""
    n, generator = sum(lengths), torch.Generator().manual_seed(len(lengths))
    labels = torch.randint(5, 90, (6,), generator=generator)
    labels[-1] = IGNORED
    return {
        "tokens": torch.randint(5, 90, (n,), generator=generator),
        "positions": torch.cat([torch.arange(length) for length in lengths]),
        "cu_seqlens": torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
        "masked_positions": torch.randperm(n, generator=generator)[:6],
        "labels": labels,
    }
