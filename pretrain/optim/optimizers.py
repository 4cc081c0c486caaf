"""The optimizers: AdamW, LAMB, StableAdamW, and Muon for hidden matrices.

References: AdamW: Loshchilov and Hutter, 2019. LAMB: You et al., "Large batch optimization for deep learning: training
BERT in 76 minutes", 2020. StableAdamW: Wortsman et al., "Stable and low-precision training for large-scale
vision-language models", 2023. Muon: Jordan et al., 2024, https://kellerjordan.github.io/posts/muon.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.config import OptimConfig
from pretrain.optim.parameter_fragments import Exchange
from pretrain.optim.parameter_groups import Described, described
from pretrain.optim.sharded_optimizer import ShardedOptimizer, gradients

_A, _B, _C = 3.4445, -4.7750, 2.0315  # Jordan's: the steepest at zero that keep values near one
_BATCH = 1 << 26  # elements per batch of orthogonalisation


class AdamW(ShardedOptimizer):
    """AdamW with PyTorch's fused kernels on CPU and GPU, or with a kernel that also reads and writes `in_model`."""

    divides_in_kernel = True

    def update(self, group: dict[str, Any], tensors: list[Tensor]) -> None:
        self.adam(group, tensors, tensors)


class Lamb(ShardedOptimizer):
    """Adam's direction plus weight decay, scaled per parameter to lr times the norm of its weights.

    As in the authors' code, norms and biases use plain Adam, and so does a parameter whose weights or direction are
    zero.
    """

    def update(self, group: dict[str, Any], tensors: list[Tensor]) -> None:
        directions = self.adam_directions(group, tensors)
        if group["kind"] != "vector":
            segments = self.segments(tensors)
            weights, moved = segments.square_sums(tensors, directions).sqrt()
            ratios = torch.where((weights > 0) & (moved > 0), weights / moved, 1.0)
            segments.scale_(directions, ratios)
        self.descend(tensors, directions, group["lr"])


class StableAdamW(ShardedOptimizer):
    """AdamW that divides a parameter's learning rate by the RMS of g / sqrt(v) if this exceeds 1.

    v is the bias-corrected second moment after the step. So an unexpectedly large gradient has less effect.
    """

    def update(self, group: dict[str, Any], tensors: list[Tensor]) -> None:
        directions = self.adam_directions(group, tensors)
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


class Muon(ShardedOptimizer):
    """Steps along the (semi-)orthogonal matrix nearest to a matrix's Nesterov momentum.

    Steps are scaled by 0.2 * sqrt(max(rows, columns)). So their RMS equals AdamW's, and both use the same learning rate
    and weight decay (Liu et al., "Muon is scalable for LLM training", 2025). Matrices merged in one parameter (query,
    key and value; gate and up) are treated separately. With 16-bit model weights, matrices are orthogonalised in bf16,
    which is as good (Jordan) and faster; otherwise in fp32.
    """

    def __init__(self, parameters: list[Described], config: OptimConfig, depths: int = 1):
        assert config.muon is not None  # checked by the configuration
        self._muon = config.muon
        self._blocks = {p.name: p.blocks for p in parameters}
        self._weight = parameters[0].parameter  # the model's: DeepSpeed later casts all weights to one dtype
        self._exchanges: dict[tuple[Tensor, ...], Exchange] = {}
        super().__init__(parameters, config, depths)

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["kind"] == "matrix" else super().state_names(group)

    def update(self, group: dict[str, Any], tensors: list[Tensor]) -> None:
        if group["kind"] != "matrix":
            self.adam(group, tensors, tensors)
            return
        directions = self.momentum_directions(tensors, self._muon.momentum)
        if (key := tuple(tensors)) not in self._exchanges:
            self._exchanges[key] = Exchange([self._shares[tensor] for tensor in tensors], self._shapes, self._blocks)
        exchange = self._exchanges[key]
        matrices = exchange.collect(directions)
        blocks = [block for name, matrix in matrices.items() for block in matrix.split(self._blocks[name])]
        orthogonalize_(blocks, self._muon.newton_schulz_steps, self.orthogonalization_dtype)
        exchange.hand_back(matrices, directions)
        self.descend(tensors, directions, group["lr"], group["weight_decay"])

    @property
    def orthogonalization_dtype(self) -> torch.dtype:
        return torch.float32 if self._weight.dtype == torch.float32 else torch.bfloat16


def orthogonalize_(matrices: Sequence[Tensor], steps: int, dtype: torch.dtype) -> None:
    """Replace each fp32 matrix [rows, columns] by about its nearest orthogonal matrix, with Muon's scale."""
    alike: dict[torch.Size, list[Tensor]] = defaultdict(list)
    for matrix in matrices:
        alike[matrix.shape].append(matrix)
    for shape, same in alike.items():
        size = max(1, _BATCH // shape.numel())
        for first in range(0, len(same), size):
            batch = same[first : first + size]
            whitened = newton_schulz(torch.stack(batch).to(dtype), steps).float() * (0.2 * math.sqrt(max(shape)))
            torch._foreach_copy_(batch, list(whitened.unbind()))


def newton_schulz(matrices: Tensor, steps: int) -> Tensor:
    """U V^T of each U S V^T [n, rows, columns], with singular values between about 0.7 and 1.2; zero stays zero."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.mT if tall else x


OPTIMIZERS: dict[str, type[ShardedOptimizer]] = {
    "adamw": AdamW,
    "lamb": Lamb,
    "stable_adamw": StableAdamW,
    "muon": Muon,
}


def build_optimizer(model: nn.Module, config: OptimConfig, depths: int = 1) -> ShardedOptimizer:
    """Create the optimizer of a run. It expects whole parameters until `set_fragments` sets their pieces.

    `depths`: groups of matrices, as in `parameter_groups`.
    """
    return OPTIMIZERS[config.name](described(model), config, depths)
