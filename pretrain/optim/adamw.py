"""AdamW (Loshchilov and Hutter, 2019)."""

from typing import Any

from torch import Tensor

from pretrain.optim.sharded_optimizer import ShardedOptimizer


class AdamW(ShardedOptimizer):
    """In PyTorch's fused form on CPU and GPU."""

    def update(self, group: dict[str, Any], tensors: list[Tensor]) -> None:
        self.adam(group, tensors, tensors, group["lr"], group["weight_decay"])
