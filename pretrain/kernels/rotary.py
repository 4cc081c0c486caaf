"""Triton kernel of rotary positions: rotates heads in place in the merged matrix of query, key and value.

The backward pass rotates in the other direction, and writes the gradients of all parts into one matrix.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pretrain.kernels.norm import whole_rows
from pretrain.kernels.plain import Rotation


def rotate_heads(matrix: Tensor, parts: tuple[int, ...], rotated: int, by: Rotation) -> tuple[Tensor, ...]:
    """See pretrain.kernels.plain.rotate_heads."""
    results: tuple[Tensor, ...] = _RotateHeads.apply(matrix, parts, rotated, *by)
    return results


class _RotateHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, parts: tuple[int, ...], rotated: int, cos: Tensor, sin: Tensor) -> Any:
        assert matrix.is_contiguous()  # otherwise a copy would be written
        ctx.rotated, ctx.columns = rotated, [heads * 2 * cos.shape[-1] for heads in parts]
        first = matrix[:, : sum(ctx.columns[:rotated])]
        _launch(first, first, cos, sin, back=False)
        ctx.save_for_backward(cos, sin)
        return matrix.unflatten(1, (sum(parts), -1)).split(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, *of_parts: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        of_matrix = of_parts[0].new_empty(len(cos), sum(ctx.columns))
        for number, (part, target) in enumerate(zip(of_parts, of_matrix.split(ctx.columns, dim=1), strict=True)):
            if number < ctx.rotated:
                _launch(part.flatten(1), target, cos, sin, back=True)
            else:
                target.copy_(part.flatten(1))
        return of_matrix, None, None, None, None


def _launch(source: Tensor, target: Tensor, cos: Tensor, sin: Tensor, back: bool) -> None:
    """Rotate all heads of source [N, columns] and write them to target [N, columns]; both may be parts of rows."""
    n_rows, columns = source.shape
    sizes = whole_rows(columns // 2)
    grid = (triton.cdiv(n_rows, sizes["ROWS"]),)
    strides = source.stride(0), target.stride(0)
    _rotate[grid](source, target, cos, sin, n_rows, *strides, back, columns // 2, cos.shape[-1], **sizes)


@triton.jit(do_not_specialize=["n_rows"])
def _rotate(
    source,  # [n_rows, 2 * PAIRS], the rows `source_stride` apart
    target,  # out: [n_rows, 2 * PAIRS], the rows `target_stride` apart; may be the source
    cosines,  # [n_rows, HALF]
    sines,  # [n_rows, HALF]
    n_rows,
    source_stride,
    target_stride,
    BACK: tl.constexpr,
    PAIRS: tl.constexpr,  # pairs of all heads together
    HALF: tl.constexpr,  # half of a head's dimensions: the distance within a pair
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    pair = tl.arange(0, BLOCK)[None, :]
    inside = (row < n_rows) & (pair < PAIRS)
    row = row.to(tl.int64)
    angle = row * HALF + pair % HALF
    cos = tl.load(cosines + angle, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(sines + angle, mask=inside, other=0.0).to(tl.float32)
    if BACK:
        sin = -sin
    column = pair // HALF * (2 * HALF) + pair % HALF
    source += row * source_stride + column
    target += row * target_stride + column
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, first * cos - second * sin, mask=inside)
    tl.store(target + HALF, second * cos + first * sin, mask=inside)
