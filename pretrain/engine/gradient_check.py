"""Compare reduced gradients with a plain all-reduce: releases of DeepSpeed have trained on wrong ones without an error.

Their defects depended on ZeRO stage, precision, overlap of the reduction, and on modules used twice in a step.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_grad
from torch import Tensor, nn

_ELEMENTS = 1 << 20  # compared of a parameter, evenly spaced: the check hardly adds to the memory of a step
_TOLERANCE = 1e-4  # relative, for sums in fp32: only their order differs
_TOLERANCE_16_BITS = 5e-2  # where zero.reduce_dtype rounds them to 16 bits


def checked_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Names of the first, middle and last parameter of each of the optimizer's groups.

    The groups are by kind: matrices, embeddings, norms and biases. DeepSpeed lays out flat tensors in this order, and
    the middle parameter is near a limit between two ranks.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [group["params"] for group in optimizer.param_groups]
    chosen = [group[place] for group in groups for place in (0, len(group) // 2, -1)]
    return [*dict.fromkeys(names[parameter] for parameter in chosen)]


class GradientCheck:
    """Records the gradients of each backward pass of a step, and compares their sum with the reduced gradients.

    A context manager around the backward passes and `compare`; outside it costs nothing.

    Args:
        engine: DeepSpeed's.
        names: of the parameters to compare.
        flat: whether FlatGradients reduces the gradients: it sums, and DeepSpeed averages.

    Attributes:
        differences: relative differences that are too large, by parameter, as `compare` found them.
    """

    differences: dict[str, float]

    def __init__(self, engine: Any, names: list[str], flat: bool):
        self._engine = engine
        self._parameters = {name: engine.module.get_parameter(name) for name in names}
        self._ranks = 1 if flat else dist.get_world_size()
        self._tolerance = _TOLERANCE if engine.communication_data_type == torch.float32 else _TOLERANCE_16_BITS
        self._sums: dict[str, Tensor] = {}
        self._hooks: list[Any] = []

    def __enter__(self) -> "GradientCheck":
        for name, parameter in self._parameters.items():
            numel = getattr(parameter, "ds_numel", parameter.numel())  # of the whole parameter under ZeRO 3
            self._sums[name] = _sample(torch.zeros((), device=self._engine.device).expand(numel)).clone()
            self._hooks.append(parameter.register_hook(partial(_record, self._sums[name])))
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._sums = [], {}

    def compare(self) -> None:
        """Find the same `differences` on all ranks; a collective that blocks the host.

        After the last backward pass of a step and before clipping.
        """
        differences = torch.stack([self._difference(name) for name in self._parameters])
        dist.all_reduce(differences, dist.ReduceOp.MAX)
        by_name = zip(self._parameters, differences.tolist(), strict=True)
        self.differences = {name: difference for name, difference in by_name if difference > self._tolerance}

    def _difference(self, name: str) -> Tensor:
        """The norm of the difference, divided by the norm of the plain sum: fp64 [].

        0 after an overflow, as the step is skipped."""
        plain, parameter = self._sums[name], self._parameters[name]
        dist.all_reduce(plain)
        plain = plain.double() / self._ranks
        gradient = parameter.grad if self._engine.zero_optimization_stage() == 0 else safe_get_full_grad(parameter)
        reduced = torch.zeros_like(plain) if gradient is None else _sample(gradient.detach()).double()
        difference = (reduced - plain).norm() / plain.norm().clamp(min=torch.finfo(torch.float32).tiny)
        finite = plain.isfinite().all()
        if self._engine.fp16_enabled():
            finite &= reduced.isfinite().all()
        return torch.where(finite, difference.nan_to_num(nan=torch.inf), 0.0)


def _record(total: Tensor, gradient: Tensor) -> None:
    """Add a gradient of a parameter, as a hook that sees it before DeepSpeed does."""
    total.add_(_sample(gradient.detach()))


def _sample(tensor: Tensor) -> Tensor:
    """At most _ELEMENTS elements of a tensor, evenly spaced."""
    step = -(-tensor.numel() // _ELEMENTS)
    return tensor.reshape(-1)[:: max(1, step)]
