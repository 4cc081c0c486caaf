"""Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon) for hidden matrices, AdamW for all others."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pretrain.config import OptimConfig
from pretrain.optim.matrix_exchange import Exchange
from pretrain.optim.parameter_groups import Described
from pretrain.optim.sharded_optimizer import ShardedOptimizer

_A, _B, _C = 3.4445, -4.7750, 2.0315  # Jordan's: the steepest at zero that keep values near one
_BATCH = 1 << 26  # elements per batch of orthogonalisation


class Muon(ShardedOptimizer):
    """Steps along the (semi-)orthogonal matrix nearest to a matrix's Nesterov momentum.

    Steps are scaled by 0.2 * sqrt(max(rows, columns)). So their RMS equals AdamW's, and both use the same learning rate
    and weight decay (Liu et al., "Muon is scalable for LLM training", 2025). Matrices merged in one parameter (query,
    key and value; gate and up) are treated separately. With 16-bit model weights, matrices are orthogonalised in bf16,
    which is as good (Jordan) and faster; otherwise in fp32.
    """

    def __init__(self, parameters: list[Described], config: OptimConfig):
        assert config.muon is not None  # checked by the configuration
        self._muon = config.muon
        self._blocks = {p.name: p.blocks for p in parameters}
        self._weight = parameters[0].parameter  # the model's: DeepSpeed later casts all weights to one dtype
        self._exchanges: dict[tuple[Tensor, ...], Exchange] = {}
        super().__init__(parameters, config)

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["kind"] == "matrix" else super().state_names(group)

    def update(self, group: dict[str, Any], tensors: list[Tensor]) -> None:
        if group["kind"] != "matrix":
            self.adam(group, tensors, tensors, group["lr"], group["weight_decay"])
            return
        directions = self.momentum_directions(tensors, self._muon.momentum)
        exchange = self._exchange(tensors)
        matrices = exchange.collect(directions)
        blocks = [block for name, matrix in matrices.items() for block in matrix.chunk(self._blocks[name])]
        orthogonalize_(blocks, self._muon.newton_schulz_steps, self._dtype)
        exchange.hand_back(matrices, directions)
        self.descend(tensors, directions, group["lr"], group["weight_decay"])

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float32 if self._weight.dtype == torch.float32 else torch.bfloat16

    def _exchange(self, tensors: list[Tensor]) -> Exchange:
        key = tuple(tensors)
        if key not in self._exchanges:
            self._exchanges[key] = Exchange([self._shares[tensor] for tensor in tensors], self._shapes, self._blocks)
        return self._exchanges[key]


def orthogonalize_(matrices: Sequence[Tensor], steps: int, dtype: torch.dtype) -> None:
    """Replace each fp32 matrix [rows, columns] by about its nearest orthogonal matrix, with Muon's scale."""
    alike: dict[torch.Size, list[Tensor]] = defaultdict(list)
    for matrix in matrices:
        alike[matrix.shape].append(matrix)
    for shape, same in alike.items():
        for batch in _batches(same, max(1, _BATCH // shape.numel())):
            found = newton_schulz(torch.stack(batch).to(dtype), steps).float() * (0.2 * math.sqrt(max(shape)))
            torch._foreach_copy_(batch, list(found.unbind()))


def newton_schulz(matrices: Tensor, steps: int) -> Tensor:
    """U V^T of each U S V^T [n, rows, columns], with singular values between about 0.7 and 1.2; zero stays zero."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.mT if tall else x


def _batches(items: list[Tensor], size: int) -> Iterator[list[Tensor]]:
    return (items[start : start + size] for start in range(0, len(items), size))
