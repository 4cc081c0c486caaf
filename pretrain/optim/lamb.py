"""LAMB (You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020)."""

from typing import Any

import torch
from torch import Tensor

from pretrain.optim.sharded_optimizer import ShardedOptimizer


class Lamb(ShardedOptimizer):
    """Adam's direction plus weight decay, scaled per parameter to lr times the norm of its weights.

    As in the authors' code, norms and biases use plain Adam, and so does a parameter whose weights or direction are
    zero.
    """

    def update(self, group: dict[str, Any], tensors: list[Tensor]) -> None:
        directions = self.adam_directions(group, tensors)
        if group["weight_decay"]:
            torch._foreach_add_(directions, tensors, alpha=group["weight_decay"])
        if group["kind"] != "vector":
            segments = self.segments(tensors)
            weights, moved = segments.square_sums(tensors, directions).sqrt()
            ratios = torch.where((weights > 0) & (moved > 0), weights / moved, 1.0)
            segments.scale_(directions, ratios)
        self.descend(tensors, directions, group["lr"])
