"""Transformer layers over a stream, with query, key and value in one matrix. Shapes: N slots, D hidden, K places.

A layer takes and returns its states twice, the same numbers: for its first operation and for the residual sum. See
pretrain.kernels.plain.add_norm for the reason.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.kernels import Operations, Rotation
from pretrain.model.attention import Spans, attention_of_spans
from pretrain.model.model_description import EncoderShape


class _Norm(nn.Module):
    """A separate module, like LinearGelu: ZeRO-3 gathers a module's own weights for its forward pass."""

    def __init__(self, shape: EncoderShape, operations: Operations, bias: bool = True):
        super().__init__()
        self.eps, self.operations = shape.norm_eps, operations
        self.weight = nn.Parameter(torch.ones(shape.hidden))
        self.bias = nn.Parameter(torch.zeros(shape.hidden)) if bias else None


class EmbedNorm(_Norm):
    """LayerNorm of embeddings, see pretrain.kernels.plain.embed_norm."""

    def forward(self, *rows: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.operations.embed_norm(*rows, self.weight, self.bias, self.eps)


class AddNorm(_Norm):
    """LayerNorm of x + residual, [N, D], or of x alone, twice; and the sum itself."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        return self.operations.add_norm(x, residual, self.weight, self.bias, self.eps)


class LinearGelu(nn.Linear):
    """The exact GELU of a linear layer."""

    def __init__(self, inputs: int, outputs: int, operations: Operations, bias: bool = True):
        super().__init__(inputs, outputs, bias)
        self.operations = operations

    def forward(self, x: Tensor) -> Tensor:
        return self.operations.linear_gelu(x, self.weight, self.bias)


class PostNormLayer(nn.Module):
    """The layer of BERT and RoBERTa: a norm after each residual sum (Vaswani et al., 2017), and a GELU between."""

    def __init__(self, shape: EncoderShape, number: int, operations: Operations):
        super().__init__()
        d = shape.hidden
        self.heads, self.dropout = shape.heads, shape.dropout
        self.qkv = nn.Linear(d, 3 * d)
        self.attention_out = nn.Linear(d, d)
        self.attention_norm = AddNorm(shape, operations)
        self.mlp_in = LinearGelu(d, shape.intermediate, operations)
        self.mlp_out = nn.Linear(shape.intermediate, d)
        self.mlp_norm = AddNorm(shape, operations)

    def forward(
        self,
        x_ND: Tensor,
        again_ND: Tensor,
        spans: Spans,
        rotations: dict,
        places: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The states [N, D] after this layer, or those at `places` [K] alone: [K, D]."""
        q, k, v = self.qkv(x_ND).unflatten(1, (3, self.heads, -1)).unbind(1)
        dropout = self.dropout if self.training else 0.0
        mixed_ND = attention_of_spans(q, k, v, spans, dropout=dropout).flatten(1)
        if places is not None:
            again_ND, mixed_ND = again_ND.index_select(0, places), mixed_ND.index_select(0, places)
        x_ND, again_ND, _ = self.attention_norm(dropped(self.attention_out(mixed_ND), dropout), again_ND)
        x_ND, again_ND, _ = self.mlp_norm(dropped(self.mlp_out(self.mlp_in(x_ND)), dropout), again_ND)
        return x_ND, again_ND


class PreNormLayer(nn.Module):
    """The layer of ModernBERT (Warner et al., 2024): norms before each part, rotary positions, a gated MLP (GeGLU,
    Shazeer, 2020), no biases, and in most layers attention to near tokens alone.

    The first layer has no norm before its attention: the embeddings have just had one.
    """

    def __init__(self, shape: EncoderShape, number: int, operations: Operations):
        super().__init__()
        d = shape.hidden
        self.heads, self.reach, self.dropout = shape.heads, shape.reach(number), shape.dropout
        self.operations = operations
        self.attention_norm = AddNorm(shape, operations, bias=False) if number else None
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.attention_out = nn.Linear(d, d, bias=False)
        self.mlp_norm = AddNorm(shape, operations, bias=False)
        self.mlp_in = nn.Linear(d, 2 * shape.intermediate, bias=False)
        self.mlp_out = nn.Linear(shape.intermediate, d, bias=False)

    def forward(
        self,
        x_ND: Tensor,
        again_ND: Tensor,
        spans: Spans,
        rotations: dict[int | None, Rotation],
        places: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The states [N, D] after this layer, or those at `places` [K] alone: [K, D]."""
        if self.attention_norm:
            x_ND, _, again_ND = self.attention_norm(x_ND)
        q, k, v = self.operations.rotate_qkv(self.qkv(x_ND), self.heads, rotations[self.reach])
        dropout = self.dropout if self.training else 0.0
        mixed_ND = attention_of_spans(q, k, v, spans, self.reach, dropout).flatten(1)
        if places is not None:
            again_ND, mixed_ND = again_ND.index_select(0, places), mixed_ND.index_select(0, places)
        x_ND, _, again_ND = self.mlp_norm(dropped(self.attention_out(mixed_ND), dropout), again_ND)
        x_ND = again_ND + self.mlp_out(dropped(self.operations.geglu(self.mlp_in(x_ND)), dropout))
        return x_ND, x_ND


def dropped(x: Tensor, share: float) -> Tensor:
    """Dropout: zero a share of the activations and scale up the others; no change if the share is 0."""
    return F.dropout(x, share) if share else x
