"""Triton kernel for AdamW on fp32 weights, with gradients and copies of the weights in the precision of the model.

One kernel reads gradient, weight and moments, and writes weight, moments and the model's copy: 28 bytes of a weight in
16 bits. Arithmetic is fp32.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048
_WARPS = 4


def adamw(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    states: Sequence[Mapping[str, Tensor]],
    copies: Sequence[Tensor],
    settings: Mapping[str, Any],
    divisor: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    """See pretrain.kernels.plain.adamw; all tensors must be contiguous."""
    counts = [state["step"] for state in states]
    torch._foreach_add_(counts, 1)
    if found_inf is not None:
        torch._foreach_sub_(counts, [found_inf] * len(counts))
    lr = settings["lr"]
    numbers = [lr, lr * settings["weight_decay"], settings["eps"]]
    for beta in settings["betas"]:
        numbers += [beta, 1 - beta, math.log2(beta) if beta else -math.inf]
    for weight, gradient, state, copy in zip(weights, gradients, states, copies, strict=True):
        tensors = weight, gradient, state["exp_avg"], state["exp_avg_sq"], copy, state["step"], divisor, found_inf
        grid = (triton.cdiv(weight.numel(), _BLOCK),)
        _adamw[grid](*tensors, weight.numel(), *numbers, BLOCK=_BLOCK, num_warps=_WARPS)


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
