"""StableAdamW (Wortsman et al., "Stable and low-precision training for large-scale vision-language models", 2023)."""

from typing import Any

import torch
from torch import Tensor

from pretrain.optim.sharded_optimizer import ShardedOptimizer, gradients


class StableAdamW(ShardedOptimizer):
    """AdamW that divides a parameter's learning rate by the RMS of g / sqrt(v) if this exceeds 1.

    v is the bias-corrected second moment after the step. So an unexpectedly large gradient has less effect.
    """

    def update(self, group: dict[str, Any], tensors: list[Tensor]) -> None:
        directions = self.adam_directions(group, tensors)
        if group["weight_decay"]:
            torch._foreach_add_(directions, tensors, alpha=group["weight_decay"])
        segments = self.segments(tensors)
        unforeseen = [self._unforeseen(group, *pair) for pair in zip(tensors, gradients(tensors), strict=True)]
        (sums,) = segments.square_sums(unforeseen)
        clipped = (sums / segments.numels).sqrt().clamp(min=1.0).reciprocal()
        segments.scale_(directions, clipped)
        self.descend(tensors, directions, group["lr"])

    def _unforeseen(self, group: dict[str, Any], tensor: Tensor, gradient: Tensor) -> Tensor:
        """g / max(sqrt(v), eps)."""
        state = self.state[tensor]
        correction = (1 - group["betas"][1] ** state["step"]).sqrt()
        scale = state["exp_avg_sq"].sqrt().clamp_(min=group["eps"] * correction)  # before its correction
        return torch.div(gradient, scale, out=scale).mul_(correction)
