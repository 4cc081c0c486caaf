"""Streams of random documents, and encoders for them."""

from typing import Any

import numpy as np
import torch

from pretrain.config.model import PRESETS
from pretrain.masking import IGNORED
from pretrain.model import EncoderShape

ARCHS = tuple(PRESETS)  # all families of encoders


def shape_of(arch: str, **changes: Any) -> EncoderShape:
    """The shape of a tiny encoder for rows of 32 tokens; some families need settings of their own."""
    own = {"eurobert": {"kv_heads": 1}, "esm": {"mask_id": 9}}.get(arch, {})
    sizes = {"layers": 2, "hidden": 24, "heads": 2, "intermediate": 40, "max_positions": 32, "window": 8}
    return EncoderShape(**{"arch": arch, "vocab_size": 90, "pad_id": 0} | sizes | own | changes)


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
