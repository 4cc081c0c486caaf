"""Optimizers for parameters that ZeRO cuts into pieces; pretrain.optim.sharded_optimizer is their base."""

from torch import nn

from pretrain.config import OptimConfig
from pretrain.optim.optimizers import AdamW, Lamb, Muon, StableAdamW
from pretrain.optim.parameter_groups import Described, described, optimizer_order, parameter_groups
from pretrain.optim.sharded_optimizer import AVERAGE, ShardedOptimizer

__all__ = [
    "AVERAGE",
    "OPTIMIZERS",
    "Described",
    "ShardedOptimizer",
    "build_optimizer",
    "described",
    "optimizer_order",
    "parameter_groups",
]

OPTIMIZERS: dict[str, type[ShardedOptimizer]] = {
    "adamw": AdamW,
    "lamb": Lamb,
    "stable_adamw": StableAdamW,
    "muon": Muon,
}


def build_optimizer(model: nn.Module, config: OptimConfig) -> ShardedOptimizer:
    """Create the optimizer of a run. It expects whole parameters until `place` sets their pieces."""
    return OPTIMIZERS[config.name](described(model), config)
