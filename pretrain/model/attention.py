"""Attention within documents of a stream, whatever rows they share."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class DocumentMask:
    """Which keys a query may see; built once a batch.

    same_document: [R, 1, Q, S] bool for Q queries and S keys of each of R rows, or None where a row is one document.
    """

    rows: int
    same_document: Tensor | None

    @classmethod
    def of(cls, cu_seqlens: Tensor, n: int, seq_len: int, n_documents: int) -> "DocumentMask":
        """From document boundaries [C] (documents lie within rows of `seq_len` slots) and their number."""
        rows = n // seq_len
        if n_documents == rows:
            return cls(rows, None)
        slots = torch.arange(n, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        document = torch.bucketize(slots, cu_seqlens, right=True).view(rows, 1, seq_len)
        return cls(rows, document[..., :, None] == document[..., None, :])

    def of_queries(self, places: Tensor) -> "DocumentMask":
        """For the queries at `places` [R * Q] of the stream alone, Q from each row in turn."""
        if self.same_document is None:
            return self
        seq_len = self.same_document.shape[-1]
        chosen = self.same_document.reshape(-1, seq_len).index_select(0, places)
        return DocumentMask(self.rows, chosen.view(self.rows, 1, -1, seq_len))


def attention(q: Tensor, k: Tensor, v: Tensor, mask: DocumentMask) -> Tensor:
    """Scaled dot-product attention by rows: q [R * Q, H, D/H], k and v [R * S, H, D/H] to [R * Q, H, D/H]."""

    def by_row(x: Tensor) -> Tensor:
        return x.unflatten(0, (mask.rows, -1)).transpose(1, 2)

    out = F.scaled_dot_product_attention(by_row(q), by_row(k), by_row(v), attn_mask=mask.same_document)
    return out.transpose(1, 2).flatten(0, 1)
