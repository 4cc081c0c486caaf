"""Triton kernel of rotary positions: rotates queries and keys in place in the merged matrix.

The backward pass rotates in the other direction and merges the three gradients in the same kernel.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pretrain.kernels import plain
from pretrain.kernels.norm import whole_rows
from pretrain.kernels.plain import Rotation


def rotate_qkv(qkv: Tensor, heads: int, kv_heads: int, by: Rotation) -> tuple[Tensor, Tensor, Tensor]:
    """See pretrain.kernels.plain.rotate_qkv, which grouped heads take."""
    if kv_heads != heads:
        return plain.rotate_qkv(qkv, heads, kv_heads, by)
    q, k, v = _RotateQKV.apply(qkv, heads, *by)
    return q, k, v


class _RotateQKV(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        assert qkv.is_contiguous()  # otherwise a copy would be written
        q, k, _ = qkv.chunk(3, dim=1)
        _launch(q, k, None, qkv, cos, sin, back=False)
        ctx.save_for_backward(cos, sin)
        return qkv.unflatten(1, (3, heads, -1)).unbind(1)

    @staticmethod
    def backward(ctx: Any, *of_parts: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        q, k, v = (part.flatten(1).contiguous() for part in of_parts)
        out = q.new_empty(len(q), 3 * q.shape[1])
        _launch(q, k, v, out, cos, sin, back=True)
        return out, None, None, None


def _launch(q: Tensor, k: Tensor, v: Tensor | None, out: Tensor, cos: Tensor, sin: Tensor, back: bool) -> None:
    """Write q, k, v [N, H * E], with equal row strides, to out [N, 3 * H * E]; v is None if it is already in out."""
    n_rows, columns = q.shape
    sizes = whole_rows(columns // 2)
    grid = (triton.cdiv(n_rows, sizes["ROWS"]),)
    _rotate[grid](
        q, k, v, out, cos, sin, n_rows, q.stride(0), BACK=back, PAIRS=columns // 2, HALF=cos.shape[-1], **sizes
    )


@triton.jit(do_not_specialize=["n_rows"])
def _rotate(
    q,  # [n_rows, 2 * PAIRS], the rows `stride` apart
    k,  # the same
    v,  # the same, or None
    out,  # out: [n_rows, 3, 2 * PAIRS]; may share memory with q and k
    cosines,  # [n_rows, HALF]
    sines,  # [n_rows, HALF]
    n_rows,
    stride,
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
    source = row * stride + column
    target = out + row * (6 * PAIRS) + column
    for part in tl.static_range(2):
        begin = (q if part == 0 else k) + source
        first = tl.load(begin, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(begin + HALF, mask=inside, other=0.0).to(tl.float32)
        tl.store(target + part * (2 * PAIRS), first * cos - second * sin, mask=inside)
        tl.store(target + part * (2 * PAIRS) + HALF, second * cos + first * sin, mask=inside)
    if v is not None:
        for half in tl.static_range(2):
            same = tl.load(v + source + half * HALF, mask=inside, other=0.0)
            tl.store(target + 4 * PAIRS + half * HALF, same, mask=inside)
