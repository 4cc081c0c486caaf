"""Transformer layers over a stream, with query, key and value in one matrix. Shapes: N slots, D hidden, K places."""

import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.model.attention import Documents, attention
from pretrain.model.rotary import Rotation, rotate
from pretrain.model.shape import EncoderShape


class PostNormLayer(nn.Module):
    """The layer of BERT and RoBERTa: a norm after each residual sum (Vaswani et al., 2017), and a GELU between."""

    def __init__(self, shape: EncoderShape, number: int):
        super().__init__()
        d = shape.hidden
        self.heads, self.dropout = shape.heads, shape.dropout
        self.qkv = nn.Linear(d, 3 * d)
        self.attention_out = nn.Linear(d, d)
        self.attention_norm = nn.LayerNorm(d, eps=shape.norm_eps)
        self.mlp_in = nn.Linear(d, shape.intermediate)
        self.mlp_out = nn.Linear(shape.intermediate, d)
        self.mlp_norm = nn.LayerNorm(d, eps=shape.norm_eps)

    def forward(self, x_ND: Tensor, documents: Documents, rotations: dict, places: Tensor | None = None) -> Tensor:
        """The states [N, D] after this layer, or those at `places` [K] alone: [K, D]."""
        q, k, v = self.qkv(x_ND).unflatten(1, (3, self.heads, -1)).unbind(1)
        dropout = self.dropout if self.training else 0.0
        mixed_ND = attention(q, k, v, documents, dropout=dropout).flatten(1)
        if places is not None:
            x_ND, mixed_ND = x_ND.index_select(0, places), mixed_ND.index_select(0, places)
        x_ND = self.attention_norm(x_ND + dropped(self.attention_out(mixed_ND), dropout))
        return self.mlp_norm(x_ND + dropped(self.mlp_out(F.gelu(self.mlp_in(x_ND))), dropout))


class PreNormLayer(nn.Module):
    """The layer of ModernBERT (Warner et al., 2024): norms before each part, rotary positions, a gated MLP (GeGLU,
    Shazeer, 2020), no biases, and in most layers attention to near tokens alone.

    The first layer has no norm before its attention: the embeddings have just had one.
    """

    def __init__(self, shape: EncoderShape, number: int):
        super().__init__()
        d = shape.hidden
        self.heads, self.reach, self.dropout = shape.heads, shape.reach(number), shape.dropout
        norm = nn.LayerNorm(d, eps=shape.norm_eps, bias=False)
        self.attention_norm = norm if number else nn.Identity()
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.attention_out = nn.Linear(d, d, bias=False)
        self.mlp_norm = nn.LayerNorm(d, eps=shape.norm_eps, bias=False)
        self.mlp_in = nn.Linear(d, 2 * shape.intermediate, bias=False)
        self.mlp_out = nn.Linear(shape.intermediate, d, bias=False)

    def forward(
        self, x_ND: Tensor, documents: Documents, rotations: dict[int | None, Rotation], places: Tensor | None = None
    ) -> Tensor:
        """The states [N, D] after this layer, or those at `places` [K] alone: [K, D]."""
        q, k, v = self.qkv(self.attention_norm(x_ND)).unflatten(1, (3, self.heads, -1)).unbind(1)
        by = rotations[self.reach]
        dropout = self.dropout if self.training else 0.0
        mixed_ND = attention(rotate(q, by), rotate(k, by), v, documents, self.reach, dropout).flatten(1)
        if places is not None:
            x_ND, mixed_ND = x_ND.index_select(0, places), mixed_ND.index_select(0, places)
        x_ND = x_ND + dropped(self.attention_out(mixed_ND), dropout)
        value, gate = self.mlp_in(self.mlp_norm(x_ND)).chunk(2, dim=-1)
        return x_ND + self.mlp_out(dropped(F.gelu(value) * gate, dropout))


def dropped(x: Tensor, share: float) -> Tensor:
    """Activations of which a share is zero, the others being so much larger; the same without a share."""
    return F.dropout(x, share) if share else x
