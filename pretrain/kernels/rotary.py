"""Triton kernel of rotary positions: rotates heads in place in the merged matrix of query, key and value.

The backward pass rotates in the other direction, and writes the gradients of all parts into one matrix, unless they
are parts of one.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pretrain.kernels.norm import whole_rows
from pretrain.kernels.plain import Rotation

_FORWARD, _BACK, _COPY = 1, -1, 0


def rotate_heads(matrix: Tensor, parts: tuple[int, ...], rotated: int, by: Rotation | None) -> tuple[Tensor, ...]:
    """See pretrain.kernels.plain.rotate_heads."""
    results: tuple[Tensor, ...] = _RotateHeads.apply(matrix, parts, rotated, *(by or (None, None)))
    return results


class _RotateHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, parts: tuple[int, ...], rotated: int, *by: Tensor | None) -> Any:
        assert matrix.is_contiguous()  # otherwise a copy would be written
        of_head = matrix.shape[1] // sum(parts)
        ctx.rotated, ctx.columns = rotated, [heads * of_head for heads in parts]
        first = matrix[:, : sum(ctx.columns[:rotated])]
        if rotated:
            _launch(first, first, by, of_head // 2, _FORWARD)
        ctx.save_for_backward(*by)
        return matrix.unflatten(1, (sum(parts), of_head)).split(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, *of_parts: Tensor) -> tuple[Tensor | None, ...]:
        half, columns, by = of_parts[0].shape[-1] // 2, ctx.columns, ctx.saved_tensors
        of_matrix = None if torch.compiler.is_compiling() else _matrix_of(of_parts)  # a graph has no views
        if of_matrix is not None:
            first = of_matrix[:, : sum(columns[: ctx.rotated])]
            if ctx.rotated:
                _launch(first, first, by, half, _BACK)
        elif not ctx.rotated:
            of_matrix = torch.cat([part.flatten(1) for part in of_parts], dim=1)
        else:
            of_matrix = of_parts[0].new_empty(len(of_parts[0]), sum(columns))
            for number, (part, target) in enumerate(zip(of_parts, of_matrix.split(columns, dim=1), strict=True)):
                way = _BACK if number < ctx.rotated else _COPY
                _launch(part.flatten(1), target, by, half, way)
        return of_matrix, *(None,) * 4


def _matrix_of(parts: tuple[Tensor, ...]) -> Tensor | None:
    """The matrix [N, columns] that has these parts [N, H, E] next to each other; None if no matrix has them."""
    whole, begin = parts[0]._base, 0
    for part in parts:
        if whole is None or part._base is not whole or part.storage_offset() != begin:
            return None
        begin += part[0].numel()
    return whole.flatten(1) if whole is not None and whole[0].numel() == begin else None


def _launch(source: Tensor, target: Tensor, by: tuple[Tensor | None, ...], half: int, way: int) -> None:
    """Rotate or copy all heads of source [N, columns] to target [N, columns]; both may be parts of rows."""
    n_rows, columns = source.shape
    sizes = whole_rows(columns // 2)
    grid = (triton.cdiv(n_rows, sizes["ROWS"]),)
    strides = source.stride(0), target.stride(0)
    _rotate[grid](source, target, *by, n_rows, *strides, way, columns // 2, half, **sizes)


@triton.jit(do_not_specialize=["n_rows"])
def _rotate(
    source,  # [n_rows, 2 * PAIRS], the rows `source_stride` apart
    target,  # out: [n_rows, 2 * PAIRS], the rows `target_stride` apart; may be the source
    cosines,  # [n_rows, HALF]
    sines,  # [n_rows, HALF]
    n_rows,
    source_stride,
    target_stride,
    WAY: tl.constexpr,  # of the rotation; 0 copies
    PAIRS: tl.constexpr,  # pairs of all heads together
    HALF: tl.constexpr,  # half of a head's dimensions: the distance within a pair
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    pair = tl.arange(0, BLOCK)[None, :]
    inside = (row < n_rows) & (pair < PAIRS)
    row = row.to(tl.int64)
    column = pair // HALF * (2 * HALF) + pair % HALF
    source += row * source_stride + column
    target += row * target_stride + column
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    if WAY != 0:
        angle = row * HALF + pair % HALF
        cos = tl.load(cosines + angle, mask=inside, other=0.0).to(tl.float32)
        sin = tl.load(sines + angle, mask=inside, other=0.0).to(tl.float32) * WAY
        first, second = first * cos - second * sin, second * cos + first * sin
    tl.store(target, first, mask=inside)
    tl.store(target + HALF, second, mask=inside)
