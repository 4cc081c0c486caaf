"""Streams of random documents, and encoders for them."""

import itertools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

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


def plain_varlen(q, k, v, cu_q, cu_k, max_q, max_k, window_size):
    """torch's varlen_attn by its definition: each part alone, keys from `left` before to `right` after a query."""
    assert max_q >= cu_q.diff().max()
    assert max_k >= cu_k.diff().max()
    assert (len(q), len(k)) == (cu_q[-1], cu_k[-1])
    left, right = window_size
    parts = []
    for of_queries, of_keys in zip(*(itertools.pairwise(bounds.tolist()) for bounds in (cu_q, cu_k)), strict=True):
        queries, keys = slice(*of_queries), slice(*of_keys)
        ahead = torch.arange(len(k))[keys] - torch.arange(len(q))[queries, None]
        sees = ((ahead >= -left) | (left < 0)) & ((ahead <= right) | (right < 0))
        one = (x.transpose(0, 1) for x in (q[queries], k[keys], v[keys]))
        parts.append(F.scaled_dot_product_attention(*one, attn_mask=sees).transpose(0, 1))
    return torch.cat(parts)
