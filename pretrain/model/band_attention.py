"""Local attention by blocks: skips pairs of distant tokens (Beltagy et al., "Longformer", 2020).

Shapes: N slots of the stream, H heads of E dimensions; queries in blocks of B slots. A block sees keys in
W = B + 2 * reach slots: its own and those within reach.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_NONE = -1  # document number of the slots that fill up the stream


def band_width(reach: int) -> int:
    """W: keys compared with each query; it sees half of them."""
    return _block(reach) + 2 * reach


def band_mask(document: Tensor, reach: int) -> Tensor:
    """Mask of the W keys that a block's queries see, from document numbers [N]: [blocks, 1, B, W] bool."""
    block, width = _block(reach), band_width(reach)
    filled = F.pad(document, (0, -len(document) % block), value=_NONE)
    queries = filled.view(-1, block, 1)
    keys = F.pad(filled, (reach, reach), value=_NONE).unfold(0, width, block).unsqueeze(1)
    ahead = torch.arange(-reach, width - reach, device=document.device)
    ahead = ahead - torch.arange(block, device=document.device)[:, None]
    return ((queries == keys) & (ahead.abs() <= reach)).unsqueeze(1)


def band_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, reach: int, dropout: float) -> Tensor:
    """Attention of q, k, v [N, H, E] under a band_mask: [N, H, E]."""
    n, block, width = len(q), _block(reach), band_width(reach)
    fill = -n % block
    q = F.pad(q, (0, 0, 0, 0, 0, fill)).unflatten(0, (-1, block)).transpose(1, 2)
    k, v = (F.pad(x, (0, 0, 0, 0, reach, reach + fill)).unfold(0, width, block).transpose(2, 3) for x in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return out.transpose(1, 2).flatten(0, 1)[:n]


def _block(reach: int) -> int:
    return 2 * reach
