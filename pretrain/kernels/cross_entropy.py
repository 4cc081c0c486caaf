"""Triton kernel for rows of logits: softmax, loss, correct choices and gradient, in place.

One program computes one row. It reads the row once for the sum of its exponentials (Milakov & Gimelshein, "Online
normalizer calculation for softmax", 2018), and a second time to replace it by its gradient. Arithmetic is fp32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pretrain.masking import IGNORED

_BLOCK = 4096  # logits that a program holds at a time
_OF_A_WARP = 512
_IGNORED = tl.constexpr(IGNORED)


def cross_entropy(logits: Tensor, labels: Tensor, n_ids: int, smoothing: float, z_loss: float, learns: bool) -> Tensor:
    """See pretrain.kernels.plain.cross_entropy; `logits` must be contiguous."""
    assert logits.is_contiguous()  # otherwise the gradient would be written to a copy
    results = torch.empty(len(logits), 3, dtype=torch.float32, device=logits.device)
    columns = logits.shape[1]
    block = min(triton.next_power_of_2(columns), _BLOCK)
    _row[(len(logits),)](
        logits,
        labels,
        results,
        smoothing,
        z_loss,
        COLUMNS=columns,
        IDS=n_ids,
        SMOOTHS=smoothing > 0,
        LEARNS=learns,
        BLOCK=block,
        num_warps=max(block // _OF_A_WARP, 1),
    )
    return results


@triton.jit
def _row(
    logits,  # [K, COLUMNS]; out: their gradient, if LEARNS
    labels,  # [K] int64
    results,  # out: [K, 3] fp32: loss, cross-entropy, 1 if the largest logit is the label's
    smoothing,
    z_loss,
    COLUMNS: tl.constexpr,
    IDS: tl.constexpr,  # COLUMNS without padding
    SMOOTHS: tl.constexpr,
    LEARNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * COLUMNS
    label = tl.load(labels + row)
    used = label != _IGNORED
    label = tl.where(used, label, 0)
    of_label = tl.load(logits + label).to(tl.float32)
    largest = float("-inf")
    total = 0.0
    over_ids = 0.0
    before_label = 0  # logits that arg-max prefers to the label's; of equal ones it chooses the first
    for first in range(0, COLUMNS, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = tl.load(logits + column, mask=column < COLUMNS, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(largest, tl.max(value, 0))
        total = total * tl.exp(largest - higher) + tl.sum(tl.exp(value - higher), 0)
        largest = higher
        before_label += tl.sum(((value > of_label) | ((value == of_label) & (column < label))).to(tl.int32), 0)
        if SMOOTHS:
            over_ids += tl.sum(tl.where(column < IDS, value, 0.0), 0)
    log_total = largest + tl.log(total)
    plain = log_total - of_label
    loss = plain + z_loss * log_total * log_total
    if SMOOTHS:
        loss += smoothing * (of_label - over_ids / IDS)
    tl.store(results + 3 * row, tl.where(used, loss, 0.0))
    tl.store(results + 3 * row + 1, tl.where(used, plain, 0.0))
    tl.store(results + 3 * row + 2, (used & (before_label == 0)).to(tl.float32))
    if LEARNS:
        by = (1.0 + 2.0 * z_loss * log_total) / total
        for first in range(0, COLUMNS, BLOCK):
            column = first + tl.arange(0, BLOCK)
            value = tl.load(logits + column, mask=column < COLUMNS, other=float("-inf")).to(tl.float32)
            gradient = tl.exp(value - largest) * by + tl.where(column == label, smoothing - 1.0, 0.0)
            if SMOOTHS:
                gradient -= tl.where(column < IDS, smoothing / IDS, 0.0)
            tl.store(logits + column, tl.where(used, gradient, 0.0), mask=column < COLUMNS)
