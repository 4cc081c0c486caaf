"""Tiles of a stream: which slots a program of an attention kernel computes."""

from typing import NamedTuple

import torch
from torch import Tensor

TILE = 64  # slots


def tiles_fit(per_head: int) -> bool:
    """Whether the kernels with tiles take heads of this many dimensions."""
    return per_head in (32, 64, 128)


class Tiles(NamedTuple):
    """The tiles of a batch, for all layers; made without waiting for the GPU.

    A document has one tile for each `TILE` of its slots. There are a few more tiles than documents need, because the
    host does not know their number; they have `end` 0.

    first, begin, end: [tiles] int32: the first slot of a tile; first slot of its document, and the slot after the last.
    """

    first: Tensor
    begin: Tensor
    end: Tensor

    @classmethod
    def of(cls, cu_seqlens: Tensor, n: int) -> "Tiles":
        """The tiles of documents in n slots, with boundaries [documents + 1] int32; a document may be empty."""
        before = ((cu_seqlens.diff() + TILE - 1) // TILE).cumsum(0, dtype=torch.int32)
        number = torch.arange(n // TILE + len(before), dtype=torch.int32, device=cu_seqlens.device)
        document = torch.searchsorted(before, number, right=True)
        used = document < len(before)
        document = document.clamp(max=len(before) - 1)
        begin, end = cu_seqlens[document], cu_seqlens[document + 1]
        of_document = before[document] - (end - begin + TILE - 1) // TILE
        return cls(begin + TILE * (number - of_document), begin, end * used)
