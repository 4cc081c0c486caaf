"""Transformer layers over a stream, with query, key and value in one matrix. Shapes: N slots, D hidden, K places.

A layer takes and returns two matrices, so that the kernel of a norm makes the residual sum and adds the gradients; see
pretrain.kernels.plain.add_norm. They are the same states twice in a PostNormLayer, and two terms of them in a
PreNormLayer.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.kernels import Operations, Rotation, add_rms_norm, swiglu
from pretrain.model.attention import SpanBounds, attention_of_spans
from pretrain.model.model_description import EncoderShape


class _Norm(nn.Module):
    """A separate module, like LinearGelu: ZeRO-3 gathers a module's own weights for its forward pass."""

    def __init__(self, shape: EncoderShape, operations: Operations):
        super().__init__()
        self.eps, self.rms, self.operations = shape.norm_eps, shape.rms_norm, operations
        self.weight = nn.Parameter(torch.ones(shape.hidden))
        self.bias = nn.Parameter(torch.zeros(shape.hidden)) if shape.biases else None


class EmbedNorm(_Norm):
    """LayerNorm of embeddings, see pretrain.kernels.plain.embed_norm."""

    def forward(self, *rows: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.operations.embed_norm(*rows, self.weight, self.bias, self.eps)


class AddNorm(_Norm):
    """LayerNorm or RMSNorm of x + residual, [N, D], or of x alone, twice; and the sum itself."""

    def forward(
        self, x: Tensor, residual: Tensor | None = None, x_bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self.rms:
            return add_rms_norm(x, residual, self.weight, self.eps)
        return self.operations.add_norm(x, residual, self.weight, self.bias, self.eps, x_bias)


class LinearBeforeNorm(nn.Linear):
    """A linear layer, and the norm of its result and a residual.

    It calls the norm, whose kernel adds the bias: ZeRO-3 gathers the bias for the forward pass of this module alone.
    """

    def forward(  # type: ignore[override]
        self, x: Tensor, norm: AddNorm, residual: Tensor, dropout: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self.bias is None or dropout or not norm.operations.fused:
            return norm(dropped(super().forward(x), dropout), residual)
        return norm(F.linear(x, self.weight), residual, self.bias)


class LinearGelu(nn.Linear):
    """The exact GELU of a linear layer."""

    def __init__(self, inputs: int, outputs: int, operations: Operations, bias: bool = True):
        super().__init__(inputs, outputs, bias)
        self.operations = operations

    def forward(self, x: Tensor) -> Tensor:
        return self.operations.linear_gelu(x, self.weight, self.bias)


class LinearGated(nn.Linear):
    """GeGLU or SwiGLU (Shazeer, 2020) of a linear layer without bias."""

    def __init__(self, shape: EncoderShape, operations: Operations):
        super().__init__(shape.hidden, 2 * shape.intermediate, bias=False)
        self.silu, self.operations = shape.arch == "eurobert", operations

    def forward(self, x: Tensor) -> Tensor:
        halves = super().forward(x)
        return swiglu(halves) if self.silu else self.operations.geglu(halves)


class QueryKeyValue(nn.Linear):
    """The linear layer of query, key and value; the query can have a separate input."""

    def __init__(self, shape: EncoderShape):
        super().__init__(shape.hidden, sum(shape.stacked["qkv"]), shape.biases)
        self.columns = [shape.hidden, self.out_features - shape.hidden]

    def forward(self, x_ND: Tensor, x_KD: Tensor | None = None) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Query, key and value, merged [N, (H + 2G) * E]; with x_KD, the query of it [K, H * E], and the others."""
        if x_KD is None:
            return (super().forward(x_ND),)
        weights = self.weight.split(self.columns)
        biases = (None, None) if self.bias is None else self.bias.split(self.columns)
        return tuple(F.linear(*each) for each in zip((x_KD, x_ND), weights, biases, strict=True))


def _heads(
    operations: Operations,
    matrices: tuple[Tensor, ...],
    parts: tuple[int, ...],
    by: Rotation | None = None,
    queries: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Query, key and value of the results of QueryKeyValue, with so many heads, rotated if their positions count.

    queries: places [K] of the queries, if they have a separate matrix.
    """
    rotate, rotated = operations.rotate_heads, int(by is not None)
    if len(matrices) == 1:
        return rotate(matrices[0], parts, 2 * rotated, by)
    of_queries = by and (by[0][queries], by[1][queries])
    return *rotate(matrices[0], parts[:1], rotated, of_queries), *rotate(matrices[1], parts[1:], rotated, by)


class PostNormLayer(nn.Module):
    """The layer of BERT and RoBERTa: a norm after each residual sum (Vaswani et al., 2017), and a GELU between."""

    def __init__(self, shape: EncoderShape, number: int, operations: Operations):
        super().__init__()
        d = shape.hidden
        self.heads, self.dropout, self.operations = shape.heads, shape.dropout, operations
        self.qkv = QueryKeyValue(shape)
        self.attention_out = LinearBeforeNorm(d, d)
        self.attention_norm = AddNorm(shape, operations)
        self.mlp_in = LinearGelu(d, shape.intermediate, operations)
        self.mlp_out = LinearBeforeNorm(shape.intermediate, d)
        self.mlp_norm = AddNorm(shape, operations)

    def forward(
        self, x_ND: Tensor, again_ND: Tensor, spans: SpanBounds, rotations: dict, places: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The states [N, D] after this layer, or those at `places` [K] alone: [K, D]."""
        some = spans[0][1].queries is not None
        if places is not None:
            again_ND = again_ND.index_select(0, places)
        q, k, v = _heads(self.operations, self.qkv(x_ND, again_ND if some else None), (self.heads,) * 3)
        dropout = self.dropout if self.training else 0.0
        mixed_ND = attention_of_spans(q, k, v, spans, dropout=dropout).flatten(1)
        if places is not None and not some:
            mixed_ND = mixed_ND.index_select(0, places)
        x_ND, again_ND, _ = self.attention_out(mixed_ND, self.attention_norm, again_ND, dropout)
        x_ND, again_ND, _ = self.mlp_out(self.mlp_in(x_ND), self.mlp_norm, again_ND, dropout)
        return x_ND, again_ND


class PreNormLayer(nn.Module):
    """The layer with norms before each part and rotary positions.

    - ModernBERT (Warner et al., 2024): GeGLU, no biases, and in most layers attention to near tokens alone. The first
      layer has no norm before its attention: the embeddings have just had one.
    - EuroBERT (Boizard et al., 2025): SwiGLU, RMSNorm, no biases, and groups of heads that share key and value.
    - ESM-2 (Lin et al., 2023): GELU and biases.
    """

    def __init__(self, shape: EncoderShape, number: int, operations: Operations):
        super().__init__()
        d, wide, bias = shape.hidden, shape.intermediate, shape.biases
        self.parts = shape.heads, shape.key_heads, shape.key_heads  # heads of query, key and value
        self.reach, self.dropout = shape.reach(number), shape.dropout
        self.operations = operations
        self.first = number == 0
        self.attention_norm = None if self.first and shape.embedding_norm else AddNorm(shape, operations)
        self.qkv = QueryKeyValue(shape)
        self.attention_out = LinearBeforeNorm(d, d, bias)
        self.mlp_norm = AddNorm(shape, operations)
        self.mlp_in = LinearGated(shape, operations) if shape.gated else LinearGelu(d, wide, operations)
        self.mlp_out = nn.Linear(wide, d, bias)

    def forward(
        self,
        x_ND: Tensor,
        again_ND: Tensor | None,
        spans: SpanBounds,
        rotations: dict[int | None, Rotation],
        places: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Two terms of the states [N, D] after this layer, or of those at `places` [K] alone: [K, D].

        The first layer takes the embeddings twice; the others take two terms, or the states and None.
        """
        of_query = x_ND
        if self.attention_norm:
            x_ND, of_query, again_ND = self.attention_norm(x_ND, None if self.first else again_ND)
        assert again_ND is not None
        dropout = self.dropout if self.training else 0.0
        queries = places if spans[0][1].queries else None
        matrices = self.qkv(x_ND, None if queries is None else of_query.index_select(0, queries))
        tiles, kernel, rotation = spans[0][1].tiles, self.operations.window_attention, rotations[self.reach]
        if tiles and kernel and self.reach is not None and not dropout:  # one view of all rows, in both directions
            mixed_NHE = kernel(matrices[0], self.parts[0], rotation, tiles, self.reach)
        else:
            q, k, v = _heads(self.operations, matrices, self.parts, rotation, queries)
            mixed_NHE = attention_of_spans(q, k, v, spans, self.reach, dropout)
        if places is not None:
            again_ND = again_ND.index_select(0, places)
            mixed_NHE = mixed_NHE if queries is not None else mixed_NHE.index_select(0, places)
        x_ND, _, again_ND = self.attention_out(mixed_NHE.flatten(1), self.mlp_norm, again_ND, dropout)
        return self.mlp_out(dropped(self.mlp_in(x_ND), dropout)), again_ND


def dropped(x: Tensor, share: float) -> Tensor:
    """Dropout: zero a share of the activations and scale up the others; no change if the share is 0."""
    return F.dropout(x, share) if share else x
