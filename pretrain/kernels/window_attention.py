"""Triton kernel of attention within documents and a window, from the merged matrix of query, key and value.

Each program computes one tile: queries of one document and one head. Rotary positions are applied while queries and
keys are loaded. With a window of 64 on either side, tiles of 64 x 64 compute 1.5 times the pairs that count;
FlashAttention's 128 x 128 tiles (Dao, "FlashAttention-2", 2023), whose algorithm this follows, compute 3.1 times.

The backward pass is one kernel, too. Its programs compute the gradients of their slots' queries, and then the gradients
of the same slots' keys and values; so each number has one writer, nothing is added atomically, and the result is
bit-for-bit reproducible.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pretrain.kernels.plain import Rotation
from pretrain.kernels.tiles import TILE, Tiles

_LOG2_E = 1.4426950408889634


def window_attention(qkv: Tensor, heads: int, by: Rotation, tiles: Tiles, reach: int) -> Tensor:
    """Attention of qkv [N, 3 * H * E] in both directions, after queries and keys are rotated by positions: [N, H, E].

    The twin in plain torch is `rotate_heads` and pretrain.model.attention.

    Args:
        heads: H; see pretrain.kernels.tiles for E.
        tiles: of the documents.
        reach: how many tokens a token attends to on either side.
    """
    out: Tensor = _WindowAttention.apply(qkv, heads, *by, tiles, reach)
    return out


class _WindowAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, cos: Tensor, sin: Tensor, tiles: Tiles, reach: int) -> Tensor:
        qkv = qkv.contiguous()
        half = cos.shape[-1]
        out = qkv.new_empty(len(qkv), heads, 2 * half)
        log_sums = qkv.new_empty(heads, len(qkv), dtype=torch.float32)
        ctx.of_scale = (2 * half) ** -0.5
        ctx.sizes = {"HALF": half, "SIZE": TILE, "REACH": reach, "HEADS": heads, "num_stages": 1}
        inputs = qkv, cos, sin, *tiles
        _window_forward[(len(tiles.first), heads)](
            *inputs, out, log_sums, len(qkv), ctx.of_scale * _LOG2_E, num_warps=4, **ctx.sizes
        )
        ctx.save_for_backward(*inputs, out, log_sums)
        return out

    @staticmethod
    def backward(ctx: Any, of_out: Tensor) -> tuple[Tensor | None, ...]:
        qkv, cos, sin, first, *others = ctx.saved_tensors
        of_qkv = torch.empty_like(qkv)
        inputs = qkv, cos, sin, first, *others, of_out.contiguous(), of_qkv
        sizes = ctx.sizes | {"STEP": min(32, 1024 // ctx.sizes["HALF"]), "num_warps": 8}
        _window_backward[(len(first), sizes["HEADS"])](*inputs, len(qkv), ctx.of_scale * _LOG2_E, ctx.of_scale, **sizes)
        return of_qkv, *(None,) * 5


@triton.jit
def _rows(
    matrix, slot, PART: tl.constexpr, PARTS: tl.constexpr, HEADS: tl.constexpr, E: tl.constexpr, COUNT: tl.constexpr
):
    """Pointers to the first COUNT numbers of this program's head, in a matrix [N, PARTS, HEADS, E]: [SIZE, COUNT]."""
    row = (slot.to(tl.int64) * PARTS + PART) * HEADS + tl.program_id(1)
    return matrix + row[:, None] * E + tl.arange(0, COUNT)[None, :]


@triton.jit
def _rotated(qkv, cosines, sines, slot, inside, PART: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr):
    """Queries (PART 0) or keys (PART 1) of this program's head, rotated by their positions: two halves [SIZE, HALF]."""
    known = inside[:, None]
    at = _rows(qkv, slot, PART, 3, HEADS, 2 * HALF, HALF)
    first = tl.load(at, mask=known, other=0.0)
    second = tl.load(at + HALF, mask=known, other=0.0)
    angle = slot[:, None] * HALF + tl.arange(0, HALF)[None, :]
    cos = tl.load(cosines + angle, mask=known, other=0.0).to(tl.float32)
    sin = tl.load(sines + angle, mask=known, other=0.0).to(tl.float32)
    turned = first.to(tl.float32) * cos - second.to(tl.float32) * sin
    return turned.to(first.dtype), (second.to(tl.float32) * cos + first.to(tl.float32) * sin).to(first.dtype)


@triton.jit
def _store_rotated_back(
    of_qkv, cosines, sines, slot, inside, first, second, PART: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr
):
    """Write gradients of rotated queries or keys, two halves [SIZE, HALF] fp32, as those before the rotation."""
    known = inside[:, None]
    at = _rows(of_qkv, slot, PART, 3, HEADS, 2 * HALF, HALF)
    angle = slot[:, None] * HALF + tl.arange(0, HALF)[None, :]
    cos = tl.load(cosines + angle, mask=known, other=0.0).to(tl.float32)
    sin = tl.load(sines + angle, mask=known, other=0.0).to(tl.float32)
    tl.store(at, first * cos + second * sin, mask=known)
    tl.store(at + HALF, second * cos - first * sin, mask=known)


@triton.jit
def _loaded(matrix, slot, inside, PART: tl.constexpr, PARTS: tl.constexpr, HEADS: tl.constexpr, E: tl.constexpr):
    return tl.load(_rows(matrix, slot, PART, PARTS, HEADS, E, E), mask=inside[:, None], other=0.0)


@triton.jit
def _scores(first, second, other_first, other_second, slot, other, end, scale, REACH: tl.constexpr):
    """Scores to the base 2 of queries and keys, either as rows; -inf where a query does not see a key.

    Rows after the end of the document are not masked: they are never stored, and no other row reads them.
    """
    scores = tl.dot(first, tl.trans(other_first), input_precision="ieee")
    scores = tl.dot(second, tl.trans(other_second), scores, input_precision="ieee")
    near = (other[None, :] < end) & (tl.abs(slot[:, None] - other[None, :]) <= REACH)
    return tl.where(near, scores * scale, float("-inf"))


@triton.jit
def _window_forward(
    qkv,  # [n_rows, 3, HEADS, 2 * HALF]
    cosines,  # [n_rows, HALF]
    sines,  # [n_rows, HALF]
    firsts,  # [tiles] int32, the first slot of each tile
    begins,  # [tiles] int32, the first slot of its document
    ends,  # [tiles] int32, the slot after its document; not after `first`: an unused tile
    out,  # out: [n_rows, HEADS, 2 * HALF]
    log_sums,  # out: [HEADS, n_rows] fp32, logarithms to the base 2
    n_rows,
    scale,
    HALF: tl.constexpr,
    SIZE: tl.constexpr,
    REACH: tl.constexpr,
    HEADS: tl.constexpr,
):
    first = tl.load(firsts + tl.program_id(0))
    begin = tl.load(begins + tl.program_id(0))
    end = tl.load(ends + tl.program_id(0))
    query = first + tl.arange(0, SIZE)
    inside = query < end
    q_first, q_second = _rotated(qkv, cosines, sines, query, inside, 0, HEADS, HALF)
    largest = tl.full((SIZE,), -1e30, tl.float32)  # finite: its difference with itself is 0
    total = tl.zeros((SIZE,), tl.float32)
    mixed = tl.zeros((SIZE, 2 * HALF), tl.float32)
    for start in range(tl.maximum(begin, first - REACH), tl.minimum(end, first + SIZE + REACH), SIZE):
        key = start + tl.arange(0, SIZE)
        k_first, k_second = _rotated(qkv, cosines, sines, key, key < end, 1, HEADS, HALF)
        scores = _scores(q_first, q_second, k_first, k_second, query, key, end, scale, REACH)
        new = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - new[:, None])
        shrunk = tl.exp2(largest - new)
        total = total * shrunk + tl.sum(weights, 1)
        value = _loaded(qkv, key, key < end, 2, 3, HEADS, 2 * HALF)
        mixed = tl.dot(weights.to(value.dtype), value, mixed * shrunk[:, None], input_precision="ieee")
        largest = new
    total = tl.where(inside, total, 1.0)
    at = _rows(out, query, 0, 1, HEADS, 2 * HALF, 2 * HALF)
    tl.store(at, mixed / total[:, None], mask=inside[:, None])
    tl.store(log_sums + tl.program_id(1) * n_rows + query, largest + tl.log2(total), mask=inside)


@triton.jit
def _along(out, of_out, slot, inside, HEADS: tl.constexpr, E: tl.constexpr):
    """The sum over keys of attention weights times their gradients: for each slot, fp32."""
    return tl.sum(of_out.to(tl.float32) * _loaded(out, slot, inside, 0, 1, HEADS, E).to(tl.float32), 1)


@triton.jit
def _window_backward(
    qkv,  # the first six and log_sums: see _window_forward
    cosines,
    sines,
    firsts,
    begins,
    ends,
    out,  # [n_rows, HEADS, 2 * HALF]
    log_sums,
    of_out,  # [n_rows, HEADS, 2 * HALF]
    of_qkv,  # out: [n_rows, 3, HEADS, 2 * HALF]
    n_rows,
    scale,  # of scores to the base 2
    of_scale,  # of scores to the base e
    HALF: tl.constexpr,
    SIZE: tl.constexpr,
    STEP: tl.constexpr,  # keys or queries at a time: few enough for two programs on a multiprocessor, without spills
    REACH: tl.constexpr,
    HEADS: tl.constexpr,
):
    first = tl.load(firsts + tl.program_id(0))
    begin = tl.load(begins + tl.program_id(0))
    end = tl.load(ends + tl.program_id(0))
    start, stop = tl.maximum(begin, first - REACH), tl.minimum(end, first + SIZE + REACH)
    log_sums += tl.program_id(1) * n_rows
    slot = first + tl.arange(0, SIZE)
    inside = slot < end

    q_first, q_second = _rotated(qkv, cosines, sines, slot, inside, 0, HEADS, HALF)
    of_mine = _loaded(of_out, slot, inside, 0, 1, HEADS, 2 * HALF)
    along = _along(out, of_mine, slot, inside, HEADS, 2 * HALF)
    log_sum = tl.load(log_sums + slot, mask=inside, other=0.0)
    of_first = tl.zeros((SIZE, HALF), tl.float32)
    of_second = tl.zeros((SIZE, HALF), tl.float32)
    for at_key in range(start, stop, STEP):
        key = at_key + tl.arange(0, STEP)
        k_first, k_second = _rotated(qkv, cosines, sines, key, key < end, 1, HEADS, HALF)
        value = _loaded(qkv, key, key < end, 2, 3, HEADS, 2 * HALF)
        scores = _scores(q_first, q_second, k_first, k_second, slot, key, end, scale, REACH)
        of_weights = tl.dot(of_mine, tl.trans(value), input_precision="ieee")
        of_scores = (tl.exp2(scores - log_sum[:, None]) * (of_weights - along[:, None])).to(value.dtype)
        of_first = tl.dot(of_scores, k_first, of_first, input_precision="ieee")
        of_second = tl.dot(of_scores, k_second, of_second, input_precision="ieee")
    of_first, of_second = of_first * of_scale, of_second * of_scale
    _store_rotated_back(of_qkv, cosines, sines, slot, inside, of_first, of_second, 0, HEADS, HALF)

    k_first, k_second = _rotated(qkv, cosines, sines, slot, inside, 1, HEADS, HALF)
    value = _loaded(qkv, slot, inside, 2, 3, HEADS, 2 * HALF)
    of_first = tl.zeros((SIZE, HALF), tl.float32)
    of_second = tl.zeros((SIZE, HALF), tl.float32)
    of_value = tl.zeros((SIZE, 2 * HALF), tl.float32)
    for at_query in range(start, stop, STEP):
        query = at_query + tl.arange(0, STEP)
        seen = query < end
        their_first, their_second = _rotated(qkv, cosines, sines, query, seen, 0, HEADS, HALF)
        of_theirs = _loaded(of_out, query, seen, 0, 1, HEADS, 2 * HALF)
        their_along = _along(out, of_theirs, query, seen, HEADS, 2 * HALF)
        their_log_sum = tl.load(log_sums + query, mask=seen, other=0.0)
        scores = _scores(k_first, k_second, their_first, their_second, slot, query, end, scale, REACH)
        weights = tl.exp2(scores - their_log_sum[None, :])
        of_value = tl.dot(weights.to(value.dtype), of_theirs, of_value, input_precision="ieee")
        of_weights = tl.dot(value, tl.trans(of_theirs), input_precision="ieee")
        of_scores = (weights * (of_weights - their_along[None, :])).to(value.dtype)
        of_first = tl.dot(of_scores, their_first, of_first, input_precision="ieee")
        of_second = tl.dot(of_scores, their_second, of_second, input_precision="ieee")
    at = _rows(of_qkv, slot, 2, 3, HEADS, 2 * HALF, 2 * HALF)
    tl.store(at, of_value, mask=inside[:, None])
    of_first, of_second = of_first * of_scale, of_second * of_scale
    _store_rotated_back(of_qkv, cosines, sines, slot, inside, of_first, of_second, 1, HEADS, HALF)
