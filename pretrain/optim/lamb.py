"""LAMB (You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020)."""

from typing import Any

import torch
from torch import Tensor

from pretrain.optim.sharded_optimizer import ShardedOptimizer


class Lamb(ShardedOptimizer):
    """Adam's direction and the weight decay, together as long as lr times the weights of the parameter are.

    As in the authors' code, norms and biases follow Adam alone; and where weights or direction are zero, so does all.
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
