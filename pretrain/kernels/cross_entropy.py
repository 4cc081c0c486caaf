"""Triton kernels for rows of logits: softmax, loss and correct choices; and their gradient, in place, with column sums.

A program of the first kernel reads one row, for the sum of its exponentials (Milakov & Gimelshein, "Online normalizer
calculation for softmax", 2018). A program of the second replaces some columns of many rows by their gradient and adds
them up. The programs' sums are then added in a fixed order. Arithmetic is fp32.

A bf16 logit costs 6.1 bytes of memory traffic: it is read twice and written once, and 64 rows share 8 bytes of sums.
A separate pass for the column sums would read 2 bytes more. A row could stay in the L2 cache between its two reads if
few rows were in progress, but then few rows would share the sums, which costs more than it saves.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pretrain.masking import IGNORED

_BLOCK, _COLUMNS = 4096, 2048  # logits of a row that a program of the first and the second kernel holds at a time
_ROWS = 64  # of a program of the second kernel; fixed, because it affects the bits
_OF_A_WARP = 512
_IGNORED = tl.constexpr(IGNORED)


def cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor | None, z_loss: float, learns: bool
) -> tuple[Tensor, Tensor | None]:
    """See pretrain.kernels.plain.cross_entropy; `logits` must be contiguous."""
    assert logits.is_contiguous()  # otherwise the gradient would be written to a copy
    n_rows, columns = logits.shape
    results, softmax = (torch.empty(n_rows, n, dtype=torch.float32, device=logits.device) for n in (3, 2))
    inputs = logits, labels, weights
    _logits_loss[(n_rows,)](*inputs, results, softmax, z_loss, COLUMNS=columns, **_sizes(columns, _BLOCK))
    if not learns:
        return results, None
    sizes = _sizes(columns, _COLUMNS)
    grid = triton.cdiv(columns, sizes["BLOCK"]), triton.cdiv(n_rows, _ROWS)
    sums = torch.empty(grid[1], columns, dtype=torch.float32, device=logits.device)
    _logits_gradient[grid](*inputs, softmax, sums, n_rows, COLUMNS=columns, ROWS=_ROWS, **sizes)
    return results, sums.sum(0)


def _sizes(columns: int, most: int) -> dict[str, int]:
    block = min(triton.next_power_of_2(columns), most)
    return {"BLOCK": block, "num_warps": max(block // _OF_A_WARP, 1)}


@triton.jit
def _logits_loss(
    logits,  # [K, COLUMNS]
    labels,  # [K] int64
    weights,  # [K] fp32, or None
    results,  # out: [K, 3] fp32: loss and cross-entropy, weighted; 1 if the largest logit is the label's
    softmax,  # out: [K, 2] fp32: the largest logit, and the factor of the exponentials in the gradient
    z_loss,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * COLUMNS
    label = tl.load(labels + row).to(tl.int32)
    used = label != _IGNORED
    label = tl.where(used, label, 0)
    weight = 1.0
    if weights is not None:
        weight = tl.load(weights + row)
    of_label = tl.load(logits + label).to(tl.float32)
    largest = float("-inf")
    exponentials = tl.zeros((BLOCK,), tl.float32)
    before_label = tl.zeros((BLOCK,), tl.int32)  # that arg-max prefers to the label's; of equal ones it takes the first
    for first in range(0, COLUMNS, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = tl.load(logits + column, mask=column < COLUMNS, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(largest, tl.max(value, 0))
        exponentials = exponentials * tl.exp(largest - higher) + tl.exp(value - higher)
        largest = higher
        before_label += ((value > of_label) | ((value == of_label) & (column < label))).to(tl.int32)
    total = tl.sum(exponentials, 0)
    log_total = largest + tl.log(total)
    plain = log_total - of_label
    loss = plain + z_loss * log_total * log_total
    tl.store(results + 3 * row, tl.where(used, loss * weight, 0.0))
    tl.store(results + 3 * row + 1, tl.where(used, plain * weight, 0.0))
    tl.store(results + 3 * row + 2, (used & (tl.sum(before_label, 0) == 0)).to(tl.float32))
    tl.store(softmax + 2 * row, largest)
    tl.store(softmax + 2 * row + 1, weight * (1.0 + 2.0 * z_loss * log_total) / total)


@triton.jit(do_not_specialize=["n_rows"])
def _logits_gradient(
    logits,  # [n_rows, COLUMNS]; out: their gradient
    labels,  # [n_rows] int64
    weights,  # [n_rows] fp32, or None
    softmax,  # [n_rows, 2] fp32, see _logits_loss
    sums,  # out: [programs of the rows, COLUMNS] fp32: the rows of the gradient added up
    n_rows,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,  # of a program
):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = column < COLUMNS
    total = tl.zeros((BLOCK,), tl.float32)
    start = tl.program_id(1) * ROWS
    for row in range(start, tl.minimum(start + ROWS, n_rows)):
        label = tl.load(labels + row).to(tl.int32)
        used = label != _IGNORED
        weight = 1.0
        if weights is not None:
            weight = tl.load(weights + row)
        largest = tl.load(softmax + 2 * row)
        factor = tl.load(softmax + 2 * row + 1)
        place = logits + tl.cast(row, tl.int64) * COLUMNS + column
        value = tl.load(place, mask=there, other=float("-inf")).to(tl.float32)
        gradient = tl.exp(value - largest) * factor - tl.where(column == label, weight, 0.0)
        gradient = tl.where(used, gradient, 0.0)
        total += gradient
        tl.store(place, gradient, mask=there)
    tl.store(sums + tl.program_id(1).to(tl.int64) * COLUMNS + column, total, mask=there)
