"""Attention within documents of a stream, whatever rows they share."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class DocumentMask:
    """Which slots of a row may see each other; built once a batch.

    same_document: [R, 1, S, S] bool, or None where every row is one document.
    """

    rows: int
    seq_len: int
    same_document: Tensor | None

    @classmethod
    def of(cls, cu_seqlens: Tensor, n: int, seq_len: int, n_documents: int) -> "DocumentMask":
        """From document boundaries [C] (documents lie within rows of `seq_len` slots) and their number."""
        rows = n // seq_len
        if n_documents == rows:
            return cls(rows, seq_len, None)
        slots = torch.arange(n, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        document = torch.bucketize(slots, cu_seqlens, right=True).view(rows, 1, seq_len)
        return cls(rows, seq_len, document[..., :, None] == document[..., None, :])


def attention(qkv: Tensor, mask: DocumentMask) -> Tensor:
    """Scaled dot-product attention: qkv [N, 3, H, D/H] to [N, H, D/H]."""
    n, _, heads, width = qkv.shape
    q, k, v = qkv.view(mask.rows, mask.seq_len, 3, heads, width).permute(2, 0, 3, 1, 4)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.same_document)
    return out.transpose(1, 2).reshape(n, heads, width)
