"""AdamW (Loshchilov and Hutter, 2019)."""

from typing import Any

from torch import Tensor

from pretrain.optim.sharded_optimizer import ShardedOptimizer


class AdamW(ShardedOptimizer):
    """AdamW with PyTorch's fused kernels on CPU and GPU."""

    def update(self, group: dict[str, Any], tensors: list[Tensor]) -> None:
        self.adam(group, tensors, tensors, group["lr"], group["weight_decay"])
