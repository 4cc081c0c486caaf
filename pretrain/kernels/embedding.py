"""Triton kernel for embeddings: look up, sum and norm. Backward uses the kernel of pretrain.kernels.norm."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pretrain.kernels.norm import norm_gradients, store_normed
from pretrain.kernels.tiles import whole_rows


def embed_norm(
    tokens: Tensor,
    words: Tensor,
    positions: Tensor | None,
    table: Tensor | None,
    kind: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """See pretrain.kernels.plain.embed_norm."""
    normed: Tensor = _EmbedNorm.apply(tokens, words, positions, table, kind, weight, bias, eps)
    return normed


class _EmbedNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        words: Tensor,
        positions: Tensor | None,
        table: Tensor | None,
        kind: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        n_rows, columns = len(tokens), words.shape[1]
        total, normed = (torch.empty(n_rows, columns, dtype=words.dtype, device=words.device) for _ in range(2))
        center, scale = (torch.empty(n_rows, dtype=torch.float32, device=words.device) for _ in range(2))
        sizes = whole_rows(columns)
        grid = (triton.cdiv(n_rows, sizes["ROWS"]),)
        rows = tokens, words, positions, table, kind
        _forward[grid](*rows, weight, bias, total, normed, center, scale, n_rows, eps, COLUMNS=columns, **sizes)
        ctx.save_for_backward(tokens, positions, total, weight, center, scale)
        ctx.n_words, ctx.n_positions = len(words), None if table is None else len(table)
        ctx.has_bias = bias is not None
        return normed

    @staticmethod
    def backward(ctx: Any, of_normed: Tensor) -> tuple[Tensor | None, ...]:
        tokens, positions, *kept = ctx.saved_tensors
        of_total, of_weight, of_bias = norm_gradients(tuple(kept), of_normed, None, ctx.has_bias)
        to_rows = torch.ops.aten.embedding_dense_backward
        of_words, of_table, of_kind = to_rows(of_total, tokens, ctx.n_words, -1, False), None, None
        if ctx.n_positions is not None:
            of_table = to_rows(of_total, positions, ctx.n_positions, -1, False)
            of_kind = of_total.sum(0)
        return None, of_words, None, of_table, of_kind, of_weight, of_bias, None


@triton.jit(do_not_specialize=["n_rows"])
def _forward(
    tokens,  # [n_rows] int64
    words,  # [vocabulary, COLUMNS]
    positions,  # [n_rows] int64; or None, as the next two
    table,  # [longest, COLUMNS]
    kind,  # [COLUMNS]
    weight,  # [COLUMNS]
    bias,  # [COLUMNS], or None
    total,  # out: [n_rows, COLUMNS]
    normed,  # out: [n_rows, COLUMNS]
    centers,  # out: [n_rows] fp32
    scales,  # out: [n_rows] fp32
    n_rows,
    eps,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < n_rows) & (column < COLUMNS)
    token = tl.load(tokens + row, mask=row < n_rows, other=0)
    word = tl.load(words + token * COLUMNS + column, mask=inside, other=0.0)
    value = word.to(tl.float32)
    if positions is not None:
        position = tl.load(positions + row, mask=row < n_rows, other=0)
        value += tl.load(table + position * COLUMNS + column, mask=inside, other=0.0).to(tl.float32)
        value += tl.load(kind + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
    value = value.to(word.dtype)  # the rounding that the backward pass reads
    at = row.to(tl.int64) * COLUMNS + column
    tl.store(total + at, value, mask=inside)
    store_normed(value, row, column, inside, weight, bias, normed, centers, scales, n_rows, eps, COLUMNS)
