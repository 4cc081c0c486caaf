"""ZeRO stage 1's gradients: summed in fp32 in a flat tensor for each parameter group, then over the ranks.

DeepSpeed's own path for stage 1 copies a gradient up to five times between backward pass and optimizer, sums
micro-batches in the precision of the model, and all-reduces what only one rank needs. Here a gradient is copied once
and measured. The rank's part of the flat tensor goes unchanged to DeepSpeed's optimizer, which steps on it. (DeepSpeed
has this interface for its compiler's passes: gradients with a `flat_partition`.)
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class _Partition(list[Tensor]):
    """This rank's pieces of a group's gradients, parameter by parameter, and the flat tensor that they are views of."""

    def __init__(self, pieces: list[Tensor], flat_partition: Tensor):
        super().__init__(pieces)
        self.flat_partition = flat_partition


class _GradientGroup:
    """The gradients of a parameter group: `flat` fp32 [n], laid out as the flat weights are, zero where they pad."""

    def __init__(self, parameters: list[nn.Parameter], flat_weights: Tensor):
        self.parameters = parameters
        self.flat = torch.zeros(flat_weights.numel(), device=flat_weights.device)
        starts = [p.data.storage_offset() - flat_weights.storage_offset() for p in parameters]
        self.views = [self.flat[at : at + p.numel()].view_as(p) for at, p in zip(starts, parameters, strict=True)]
        self.part = self.flat
        if (ranks := dist.get_world_size()) > 1:
            self.received = torch.empty_like(self.flat) if self.flat.device.type == "cpu" else None
            self.part = torch.empty(self.flat.numel() // ranks, device=self.flat.device)
        held = [p._hp_mapping.hp_fragment_address for p in parameters if p._hp_mapping is not None]  # type: ignore[attr-defined]
        self.pieces = [self.part[place.start : place.start + place.numel] for place in held]

    def add(self, first: bool) -> None:
        found = [(view, p.grad) for view, p in zip(self.views, self.parameters, strict=True) if p.grad is not None]
        views, gradients = [view for view, _ in found], [gradient for _, gradient in found]
        if first and len(found) < len(self.views):
            self.flat.zero_()
        if first:
            torch._foreach_copy_(views, gradients)
        else:
            torch._foreach_add_(views, gradients)
        for parameter in self.parameters:
            parameter.grad = None

    def reduce(self) -> _Partition:
        if self.part is self.flat:
            pass
        elif self.received is None:
            dist.reduce_scatter_tensor(self.part, self.flat)
        else:  # gloo's reduce-scatter is an all-reduce, which moves twice as much
            dist.all_to_all_single(self.received, self.flat)
            torch.sum(self.received.view(-1, self.part.numel()), 0, out=self.part)
        return _Partition(self.pieces, self.part)


class FlatGradients:
    """Takes gradients over from autograd, and hands the sums over all ranks to DeepSpeed's ZeRO-1 optimizer.

    Args:
        optimizer: DeepSpeed's, before the first step, with `contiguous_gradients` and `overlap_comm` off.
    """

    def __init__(self, optimizer: Any):
        self._optimizer = optimizer
        groups = zip(optimizer.bit16_groups, optimizer.bit16_groups_flat, strict=True)
        self._groups = [_GradientGroup(parameters, flat) for parameters, flat in groups]
        self._first = True
        optimizer.scaled_global_norm = self._norm

    def add(self) -> None:
        """Take what a backward pass has left in the parameters' `.grad`."""
        for group in self._groups:
            group.add(self._first)
        self._first = False

    def reduce(self) -> None:
        """Sum over all ranks, for the step that follows; a collective."""
        for number, group in enumerate(self._groups):
            self._optimizer.averaged_gradients[number] = group.reduce()
        self._first = True

    def _norm(self) -> Tensor:
        """The norm of all gradients, times the loss scale: fp32 [], not finite if one of them is not; a collective."""
        squares = torch.stack(torch._foreach_norm([group.part for group in self._groups])).square().sum()
        dist.all_reduce(squares)
        return squares.sqrt()


class Clipping:
    """Gradient norm and clipping under ZeRO 1 and 2, without blocking the host. It replaces DeepSpeed's clipping.

    DeepSpeed asks the device in each step whether the norm is finite. Here the optimizer skips such a step
    (`found_inf`), but in fp16 DeepSpeed must know on the host whether to lower its loss scale.

    Args:
        optimizer: DeepSpeed's, of stage 1 or 2 without offloading.
        fp16: whether it scales the loss.
    """

    def __init__(self, optimizer: Any, fp16: bool):
        self._optimizer, self._fp16 = optimizer, fp16
        self._norm: Tensor | None = None
        optimizer.unscale_and_clip_grads = self._clip

    def measure(self) -> Tensor | None:
        """The norm of all gradients, for the step that follows: fp32 []; None in fp16, where that step computes it.

        A collective, after the backward pass, and after a checkpoint is loaded: DeepSpeed refuses to load one when it
        does not compute norms but clips.
        """
        if not self._fp16:
            self._optimizer.compute_grad_norm = False
            self._norm = self._optimizer.scaled_global_norm()
        return self._norm

    def _clip(self, gradients: list[Tensor], norm: Tensor | None) -> None:
        """Divide by the loss scale, and by what the norm exceeds the largest allowed one."""
        scale, largest = self._optimizer.loss_scale, self._optimizer.clip_grad
        norm = self._norm if norm is None else norm
        if largest and norm is not None:
            scale = scale * ((norm / scale + 1e-6) / largest).clamp(min=1)
        elif scale == 1:
            return
        torch._foreach_mul_(gradients, 1 / scale)
