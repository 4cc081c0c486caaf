"""Attention within documents of a stream, whatever rows they share."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class DocumentMask:
    """Which keys a query may see; built once a batch.

    visible: [R, 1, Q, S] bool for Q queries and S keys of each of R rows, or None where a query sees its whole row.
    """

    rows: int
    visible: Tensor | None

    @classmethod
    def of(cls, cu_seqlens: Tensor, n: int, seq_len: int, n_documents: int, causal: bool = False) -> "DocumentMask":
        """From document boundaries [C] (documents lie within rows of `seq_len` slots) and their number.

        A query sees the keys of its document; if `causal`, only those up to its own place.
        """
        rows = n // seq_len
        if n_documents == rows and not causal:
            return cls(rows, None)
        slots = torch.arange(n, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        document = torch.bucketize(slots, cu_seqlens, right=True).view(rows, 1, seq_len)
        visible = document[..., :, None] == document[..., None, :]
        return cls(rows, visible.tril() if causal else visible)

    def of_queries(self, places: Tensor) -> "DocumentMask":
        """For the queries at `places` [R * Q] of the stream alone, Q from each row in turn."""
        if self.visible is None:
            return self
        seq_len = self.visible.shape[-1]
        chosen = self.visible.reshape(-1, seq_len).index_select(0, places)
        return DocumentMask(self.rows, chosen.view(self.rows, 1, -1, seq_len))


def attention(q: Tensor, k: Tensor, v: Tensor, mask: DocumentMask) -> Tensor:
    """Scaled dot-product attention by rows: q [R * Q, H, D/H], k and v [R * S, H, D/H] to [R * Q, H, D/H]."""

    def by_row(x: Tensor) -> Tensor:
        return x.unflatten(0, (mask.rows, -1)).transpose(1, 2)

    out = F.scaled_dot_product_attention(by_row(q), by_row(k), by_row(v), attn_mask=mask.visible)
    return out.transpose(1, 2).flatten(0, 1)
