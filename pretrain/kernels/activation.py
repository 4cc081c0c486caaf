"""Triton kernels of MLP activations: bias and GELU for BERT, GeGLU for ModernBERT; both exact, in fp32 arithmetic.

The backward pass overwrites the saved input with the gradient, so it needs no further memory. It then increments the
tensor's version, so that torch refuses a second backward pass.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from pretrain.kernels.norm import parts_of_rows

_PROGRAMS = 128  # for each part of the columns; see pretrain.kernels.norm


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See pretrain.kernels.plain.linear_gelu."""
    out: Tensor = _BiasGelu.apply(F.linear(x, weight), bias)
    return out


def geglu(halves: Tensor) -> Tensor:
    """See pretrain.kernels.plain.geglu."""
    out: Tensor = _GeGLU.apply(halves)
    return out


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        sizes = parts_of_rows(x.shape[1])
        _bias_gelu[_grid(x, sizes)](x, bias, out, len(x), COLUMNS=x.shape[1], **sizes)
        ctx.save_for_backward(x, bias)
        return out

    @staticmethod
    def backward(ctx: Any, of_out: Tensor) -> tuple[Tensor, Tensor | None]:
        x, bias = ctx.saved_tensors
        sizes = parts_of_rows(x.shape[1])
        blocks, parts = _grid(x, sizes)
        programs = min(blocks, _PROGRAMS)
        of_bias = None if bias is None else x.new_empty(programs, x.shape[1], dtype=torch.float32)
        _bias_gelu_backward[(programs, parts)](
            x, bias, of_out.contiguous(), of_bias, len(x), COLUMNS=x.shape[1], **sizes
        )
        increment_version(x)
        return x.detach(), None if of_bias is None else of_bias.sum(0).to(bias.dtype)


class _GeGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, halves: Tensor) -> Tensor:
        halves = halves.contiguous()
        out = halves.new_empty(len(halves), halves.shape[1] // 2)
        sizes = parts_of_rows(out.shape[1])
        _geglu[_grid(out, sizes)](halves, out, len(out), COLUMNS=out.shape[1], **sizes)
        ctx.save_for_backward(halves)
        return out

    @staticmethod
    def backward(ctx: Any, of_out: Tensor) -> Tensor:
        (halves,) = ctx.saved_tensors
        sizes = parts_of_rows(of_out.shape[1])
        _geglu_backward[_grid(of_out, sizes)](
            halves, of_out.contiguous(), len(of_out), COLUMNS=of_out.shape[1], **sizes
        )
        increment_version(halves)
        return halves.detach()


def _grid(matrix: Tensor, sizes: dict[str, int]) -> tuple[int, int]:
    return triton.cdiv(matrix.shape[0], sizes["ROWS"]), triton.cdiv(matrix.shape[1], sizes["BLOCK"])


@triton.jit
def _normal(x):
    """The standard normal distribution's cumulative function."""
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _slope(x):
    """The derivative of GELU."""
    return _normal(x) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit(do_not_specialize=["n_rows"])
def _bias_gelu(
    x,  # [n_rows, COLUMNS]
    bias,  # [COLUMNS], or None
    out,  # out: [n_rows, COLUMNS]
    n_rows,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < n_rows) & (column < COLUMNS)
    at = row.to(tl.int64) * COLUMNS + column
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        value += tl.load(bias + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
    tl.store(out + at, value * _normal(value), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _bias_gelu_backward(
    x,  # [n_rows, COLUMNS]; out: its gradient
    bias,  # [COLUMNS], or None
    of_out,  # [n_rows, COLUMNS]
    of_bias,  # out: [programs, COLUMNS] fp32, or None
    n_rows,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < COLUMNS
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(tl.program_id(0) * ROWS, n_rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        inside = (row < n_rows) & there[None, :]
        at = row.to(tl.int64) * COLUMNS + column[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        if bias is not None:
            value += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[None, :]
        gradient = tl.load(of_out + at, mask=inside, other=0.0).to(tl.float32) * _slope(value)
        total += gradient
        tl.store(x + at, gradient, mask=inside)
    if of_bias is not None:
        tl.store(of_bias + tl.program_id(0) * COLUMNS + column, tl.sum(total, 0), mask=there)


@triton.jit(do_not_specialize=["n_rows"])
def _geglu(
    halves,  # [n_rows, 2 * COLUMNS]
    out,  # out: [n_rows, COLUMNS]
    n_rows,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < n_rows) & (column < COLUMNS)
    at = row.to(tl.int64) * (2 * COLUMNS) + column
    value = tl.load(halves + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(halves + at + COLUMNS, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row.to(tl.int64) * COLUMNS + column, value * _normal(value) * gate, mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _geglu_backward(
    halves,  # [n_rows, 2 * COLUMNS]; out: their gradient
    of_out,  # [n_rows, COLUMNS]
    n_rows,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < n_rows) & (column < COLUMNS)
    at = row.to(tl.int64) * (2 * COLUMNS) + column
    value = tl.load(halves + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(halves + at + COLUMNS, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(of_out + row.to(tl.int64) * COLUMNS + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(halves + at, gradient * gate * _slope(value), mask=inside)
    tl.store(halves + at + COLUMNS, gradient * value * _normal(value), mask=inside)
