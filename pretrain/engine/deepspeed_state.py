"""Gradients and weights inside DeepSpeed's engine (as of 0.19), between the last backward pass and the step."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def local_gradients(engine: Any) -> list[Tensor]:
    """This rank's share of the gradients of the global batch; where they are offloaded, their norms.

    After the last backward pass of a step, for each ZeRO stage. Together, the ranks' shares are all gradients.
    """
    optimizer, stage = engine.optimizer, engine.zero_optimization_stage()
    if stage == 0:
        return [parameter.grad for parameter in engine.module.parameters() if parameter.grad is not None]
    if getattr(optimizer, "offload_optimizer" if stage == 3 else "cpu_offload"):
        return [norm.float() for norm in optimizer.norm_for_param_grads.values()]
    if stage < 3:  # DeepSpeed pads with zeros
        return [gradient for gradients in optimizer.averaged_gradients.values() for gradient in gradients]
    return [
        _within(gradient, parameter, dist.get_rank())
        for number, parameters in enumerate(optimizer.fp16_groups)
        for parameter, gradient in zip(parameters, optimizer.averaged_gradients[number], strict=True)
    ]


def replicated_weights(engine: Any) -> dict[str, Tensor]:
    """The weights that every rank holds in full, by name: all weights; under ZeRO 3, those too small to partition."""
    named = engine.module.named_parameters()
    if engine.zero_optimization_stage() < 3:
        return {name: parameter.data for name, parameter in named}
    return {name: parameter.data for name, parameter in named if parameter.ds_persist and parameter.numel()}


def local_weights(engine: Any) -> list[Tensor]:
    """The weights that belong to this rank. Together, the ranks have all weights."""
    if engine.zero_optimization_stage() < 3:
        return [parameter.data for parameter in engine.module.parameters()]
    return [own_share(parameter, dist.get_rank()) for parameter in engine.module.parameters()]


def own_share(parameter: Any, rank: int) -> Tensor:
    """A rank's part of a weight under ZeRO 3, without padding, which is uninitialized memory."""
    return _within(parameter.ds_tensor.data, parameter, rank)


def _within(part: Tensor, parameter: Any, rank: int) -> Tensor:
    """A rank's part of a tensor, without padding, if ZeRO 3 partitions it as it does `parameter`."""
    return part[: max(0, parameter.ds_numel - rank * parameter.ds_tensor.ds_numel)]


def all_finite(tensors: list[Tensor], device: torch.device) -> Tensor:
    """Whether no element is infinite, not a number or beyond 1e19: bool [] on the device, without waiting for it.

    By their norms, which one kernel finds for many tensors; on a CPU that is ten times as fast as their maxima.
    """
    tensors = [tensor for tensor in tensors if tensor.numel()]
    if not tensors:
        return torch.ones((), dtype=torch.bool, device=device)
    return torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float32)).isfinite().all().to(device)
