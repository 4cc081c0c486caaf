"""Triton kernels for LayerNorm of a residual sum or of embeddings: one kernel forward, one backward.

Statistics are fp32. As in plain torch, the sum is rounded to the precision of its terms before the statistics are
computed, so the backward pass reads the same numbers. It adds the gradients of all outputs, so that autograd makes no
pass over [N, D] to add them. Each program sums the gradients of weight and bias over its rows, and the gradients of
one row that was added to all: the type embedding, or the bias of the linear layer before.
The programs' sums are then added in a fixed order, so the result is bit-for-bit reproducible.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 512  # upper bound in the backward pass: several per multiprocessor; fixed, because it affects the bits
_ELEMENTS = 2048  # elements of a tile, unless one row has more
_OF_A_WARP = 512
_MOST_WARPS = 16


def whole_rows(columns: int) -> dict[str, int]:
    """Constants of a kernel whose programs hold whole rows."""
    return _tile(triton.next_power_of_2(columns))


def parts_of_rows(columns: int) -> dict[str, int]:
    """Constants of a kernel whose programs hold a part of the columns; the parts are a second grid axis."""
    return _tile(min(triton.next_power_of_2(columns), 512))


def _tile(block: int) -> dict[str, int]:
    rows = max(_ELEMENTS // block, 1)
    return {"BLOCK": block, "ROWS": rows, "num_warps": min(max(rows * block // _OF_A_WARP, 1), _MOST_WARPS)}


def add_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, x_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """See pretrain.kernels.plain.add_norm. The residual may be one row [D], expanded to [N, D]."""
    normed, again, total = _Norm.apply(None, x, None, residual, x_bias, weight, bias, eps)
    return normed, again, total


def embed_norm(
    tokens: Tensor,
    words: Tensor,
    positions: Tensor | None,
    table: Tensor | None,
    kind: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """See pretrain.kernels.plain.embed_norm."""
    normed, again, _ = _Norm.apply(tokens, words, positions, table, kind, weight, bias, eps)
    return normed, again


class _Norm(torch.autograd.Function):
    """The norm of x + other + row, twice, and that sum [N, D]; see _forward. With indices, of rows of x and other."""

    @staticmethod
    def forward(
        ctx: Any,
        x_rows: Tensor | None,
        x: Tensor,
        other_rows: Tensor | None,
        other: Tensor | None,
        row: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert row is None or other is not None
        x = x.contiguous()
        if other is not None and other.stride(1) != 1:
            other = other.contiguous()
        n_rows, columns = len(x) if x_rows is None else len(x_rows), x.shape[1]
        normed, sizes = x.new_empty(n_rows, columns), whole_rows(columns)
        total = x if x_rows is None and other is None else torch.empty_like(normed)
        center, scale = (x.new_empty(n_rows, dtype=torch.float32) for _ in range(2))
        inputs = x_rows, x, other_rows, other, row, weight, bias
        outputs = None if total is x else total, normed, center, scale
        stride = 0 if other is None else other.stride(0)
        grid = (triton.cdiv(n_rows, sizes["ROWS"]),)
        _forward[grid](*inputs, *outputs, n_rows, stride, eps, COLUMNS=columns, **sizes)
        ctx.save_for_backward(x_rows, other_rows, total, weight, center, scale)
        ctx.n_x, ctx.n_other = len(x), None if other is None else len(other)
        ctx.has_bias, ctx.has_row = bias is not None, row is not None
        ctx.set_materialize_grads(False)
        return normed, normed.detach(), total

    @staticmethod
    def backward(
        ctx: Any, of_normed: Tensor | None, of_again: Tensor | None, of_total: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x_rows, other_rows, total, weight, center, scale = ctx.saved_tensors
        n_rows, columns = total.shape
        if of_normed is None:
            of_normed, of_again = of_again, None
        of_normed = torch.zeros_like(total) if of_normed is None else of_normed.contiguous()
        of_again, of_total = (None if part is None else part.contiguous() for part in (of_again, of_total))
        of_sum, sizes = torch.empty_like(total), whole_rows(columns)
        programs = min(triton.cdiv(n_rows, sizes["ROWS"]), _PROGRAMS)
        n_parts = 1 + ctx.has_bias + ctx.has_row
        parts = torch.empty(n_parts, programs, columns, dtype=torch.float32, device=total.device)
        inputs = total, weight, center, scale, of_normed, of_again, of_total
        outputs = of_sum, parts[0], parts[1] if ctx.has_bias else None, parts[-1] if ctx.has_row else None
        _backward[(programs,)](*inputs, *outputs, n_rows, COLUMNS=columns, **sizes)
        sums = parts.sum(1).to(weight.dtype)
        of_bias, of_row = sums[1] if ctx.has_bias else None, sums[-1] if ctx.has_row else None
        of_other = None if ctx.n_other is None else _to_rows(of_sum, other_rows, ctx.n_other)
        return None, _to_rows(of_sum, x_rows, ctx.n_x), None, of_other, of_row, sums[0], of_bias, None


def _to_rows(gradient: Tensor, rows: Tensor | None, n_rows: int) -> Tensor:
    """The gradient [n_rows, D] of a matrix from the gradient of the used rows; unchanged if all are used."""
    if rows is None:
        return gradient
    return torch.ops.aten.embedding_dense_backward(gradient, rows, n_rows, -1, False)


@triton.jit(do_not_specialize=["n_rows"])
def _forward(
    x_rows,  # [n_rows] int64, rows of x; or None for all
    x,  # [*, COLUMNS]
    other_rows,  # [n_rows] int64, rows of `other`; or None for all
    other,  # [*, COLUMNS], its rows `stride` apart; or None
    row_of_all,  # [COLUMNS], or None
    weight,  # [COLUMNS]
    bias,  # [COLUMNS], or None
    total,  # out: x + other + row_of_all [n_rows, COLUMNS], or None
    normed,  # out: [n_rows, COLUMNS]
    centers,  # out: [n_rows] fp32
    scales,  # out: [n_rows] fp32
    n_rows,
    stride,
    eps,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < n_rows) & (column < COLUMNS)
    at = row.to(tl.int64) * COLUMNS + column
    if x_rows is None:
        value = tl.load(x + at, mask=inside, other=0.0)
    else:
        x_row = tl.load(x_rows + row, mask=row < n_rows, other=0)
        value = tl.load(x + x_row * COLUMNS + column, mask=inside, other=0.0)
    if other is not None:
        if other_rows is None:
            other_row = row.to(tl.int64)
        else:
            other_row = tl.load(other_rows + row, mask=row < n_rows, other=0)
        summed = value.to(tl.float32)
        summed += tl.load(other + other_row * stride + column, mask=inside, other=0.0).to(tl.float32)
        if row_of_all is not None:
            summed += tl.load(row_of_all + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
        value = summed.to(value.dtype)  # the rounding that the backward pass reads
    if total is not None:
        tl.store(total + at, value, mask=inside)
    value = value.to(tl.float32)
    center = tl.sum(value, 1, keep_dims=True) / COLUMNS
    off = tl.where(inside, value - center, 0.0)
    scale = tl.rsqrt(tl.sum(off * off, 1, keep_dims=True) / COLUMNS + eps)
    result = off * scale * tl.load(weight + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
    if bias is not None:
        result += tl.load(bias + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
    tl.store(normed + at, result, mask=inside)
    tl.store(centers + row, center, mask=row < n_rows)
    tl.store(scales + row, scale, mask=row < n_rows)


@triton.jit(do_not_specialize=["n_rows"])
def _backward(
    total,  # [n_rows, COLUMNS]
    weight,  # [COLUMNS]
    centers,  # [n_rows] fp32
    scales,  # [n_rows] fp32
    of_normed,  # [n_rows, COLUMNS]
    of_again,  # [n_rows, COLUMNS], or None
    of_total,  # [n_rows, COLUMNS], or None
    of_x,  # out: [n_rows, COLUMNS]
    of_weight,  # out: [programs, COLUMNS] fp32
    of_bias,  # out: [programs, COLUMNS] fp32, or None
    of_row,  # out: [programs, COLUMNS] fp32, the columns of of_x added up, or None
    n_rows,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    column = tl.arange(0, BLOCK)[None, :]
    by = tl.load(weight + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
    to_weight = tl.zeros((ROWS, BLOCK), tl.float32)
    to_bias = tl.zeros((ROWS, BLOCK), tl.float32)
    to_row = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(tl.program_id(0) * ROWS, n_rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        inside = (row < n_rows) & (column < COLUMNS)
        at = row.to(tl.int64) * COLUMNS + column
        center = tl.load(centers + row, mask=row < n_rows, other=0.0)
        scale = tl.load(scales + row, mask=row < n_rows, other=0.0)
        value = tl.load(total + at, mask=inside, other=0.0).to(tl.float32)
        unit = tl.where(inside, (value - center) * scale, 0.0)
        gradient = tl.load(of_normed + at, mask=inside, other=0.0).to(tl.float32)
        if of_again is not None:
            gradient += tl.load(of_again + at, mask=inside, other=0.0).to(tl.float32)
        to_weight += gradient * unit
        to_bias += gradient
        gradient *= by
        along = tl.sum(gradient * unit, 1, keep_dims=True) / COLUMNS
        average = tl.sum(gradient, 1, keep_dims=True) / COLUMNS
        result = (gradient - average - unit * along) * scale
        if of_total is not None:
            result += tl.load(of_total + at, mask=inside, other=0.0).to(tl.float32)
        to_row += result
        tl.store(of_x + at, result, mask=inside)
    place = tl.program_id(0) * COLUMNS + tl.arange(0, BLOCK)
    there = tl.arange(0, BLOCK) < COLUMNS
    tl.store(of_weight + place, tl.sum(to_weight, 0), mask=there)
    if of_bias is not None:
        tl.store(of_bias + place, tl.sum(to_bias, 0), mask=there)
    if of_row is not None:
        tl.store(of_row + place, tl.sum(to_row, 0), mask=there)
