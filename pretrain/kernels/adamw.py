"""Triton kernel for AdamW on fp32 weights, with gradients and copies of the weights in the precision of the model.

One kernel reads gradient, weight and moments, and writes weight, moments and the model's copy: 28 bytes of a weight in
16 bits. Arithmetic is fp32.
"""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048
_WARPS = 4


def adamw(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    averages: Sequence[Tensor],
    squares: Sequence[Tensor],
    counts: Sequence[Tensor],
    copies: Sequence[Tensor],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    divisor: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    """See pretrain.kernels.plain.adamw; all tensors must be contiguous."""
    torch._foreach_add_(list(counts), 1)
    if found_inf is not None:
        torch._foreach_sub_(list(counts), [found_inf] * len(counts))
    from_betas = [value for beta in betas for value in (beta, 1 - beta, math.log2(beta) if beta else -math.inf)]
    for weight, *others in zip(weights, gradients, averages, squares, copies, counts, strict=True):
        grid = (triton.cdiv(weight.numel(), _BLOCK),)
        options = {"BLOCK": _BLOCK, "num_warps": _WARPS}
        _adamw[grid](weight, *others, divisor, found_inf, weight.numel(), lr, lr * decay, eps, *from_betas, **options)


@triton.jit
def _adamw(
    weights,  # in and out: [n] fp32
    gradients,  # [n]
    averages,  # in and out: [n] fp32, of the gradients
    squares,  # in and out: [n] fp32, averages of the gradients' squares
    copies,  # out: [n], the weights
    count,  # [] fp32: steps, with this one
    divisor,  # [] fp32 of the gradients, or None
    found_inf,  # [] fp32: if 1, nothing changes; or None
    n,
    lr,
    lr_decay,
    eps,
    beta1,
    rest1,  # 1 - beta1, exactly
    log_beta1,  # base 2
    beta2,
    rest2,
    log_beta2,
    BLOCK: tl.constexpr,
):
    if found_inf is not None:  # noqa: SIM102 (the first condition is decided when this is compiled)
        if tl.load(found_inf) != 0.0:
            return
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    gradient = tl.load(gradients + at, mask=inside, other=0.0).to(tl.float32)
    if divisor is not None:
        gradient /= tl.load(divisor)
    weight = tl.load(weights + at, mask=inside, other=0.0)
    average = beta1 * tl.load(averages + at, mask=inside, other=0.0) + rest1 * gradient
    square = beta2 * tl.load(squares + at, mask=inside, other=0.0) + rest2 * gradient * gradient
    step = tl.load(count).to(tl.float64)  # in fp32, 1 - beta ** step loses digits
    rate = (lr / (1.0 - tl.exp2(step * log_beta1))).to(tl.float32)
    correction = tl.sqrt(1.0 - tl.exp2(step * log_beta2)).to(tl.float32)
    weight -= lr_decay * weight
    weight -= rate * average / (tl.sqrt(square) / correction + eps)
    tl.store(weights + at, weight, mask=inside)
    tl.store(averages + at, average, mask=inside)
    tl.store(squares + at, square, mask=inside)
    tl.store(copies + at, weight, mask=inside)
