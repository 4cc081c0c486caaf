"""ZeRO stage 1's gradients: summed in fp32 in a flat tensor for each parameter group, then over the ranks.

DeepSpeed's own path for stage 1 copies a gradient up to five times between backward pass and optimizer, sums
micro-batches in the precision of the model, and all-reduces what only one rank needs. Here a gradient is copied once
and measured once. The rank's part of the flat tensor is what its optimizer steps on. For an optimizer that reads 16
bits, the gradients of a step with one micro-batch stay unchanged, if there is one rank or they are sent like this.

The sum over the ranks overlaps the backward pass: gradients are sent as soon as the last micro-batch has given all of
a bucket. For that the matrices, nearly all weights of a deep model, are MATRIX_GROUPS parameter groups by depth.
DeepSpeed cuts each group evenly over the ranks, so a group is one reduce-scatter and one all-gather. Embeddings and
vectors (norms, biases) stay one group each: they are complete only when the backward pass ends, as the first layers
have some. They share the bucket of the first matrices (`group_buckets`).

With `train.compile`, autograd gets all gradients together at the end of the compiled graph: little overlaps then.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from data_prep.common.errors import UserError
from pretrain.engine.gradient_buckets import group_buckets

_RUN = 1 << 18  # elements in one fp32 sum of squares: over millions, a CPU loses three digits


class _GradientGroup:
    """The gradients of a parameter group: `flat` [n], laid out as the flat weights are, zero where they pad.

    part: [n / ranks], this rank's, summed over all ranks in fp32 by the bucket. With one rank it is `flat`.
    arrived: the parameters that have a gradient of the micro-batch. complete: whether these are all.
    """

    def __init__(self, parameters: list[nn.Parameter], flat_weights: Tensor, part: Tensor | None):
        self.parameters, self._weights, self._part = parameters, flat_weights, part
        self._lay_out(torch.float32)
        self._empty = True
        self.arrived: set[nn.Parameter] = set()

    @property
    def complete(self) -> bool:
        return len(self.arrived) == len(self.parameters)

    def _lay_out(self, dtype: torch.dtype) -> None:
        """Make `flat`, its views of the parameters, and the pieces of `part`."""
        self.flat, self.views, self._pieces = torch.empty(0, dtype=dtype), [], []  # frees the last ones
        self.flat = torch.zeros_like(self._weights, dtype=dtype)
        starts = [p.data.storage_offset() - self._weights.storage_offset() for p in self.parameters]
        self.views = [self.flat[at : at + p.numel()].view_as(p) for at, p in zip(starts, self.parameters, strict=True)]
        held: Any = [p._hp_mapping for p in self.parameters if p._hp_mapping is not None]  # type: ignore[attr-defined]
        places = [mapping.hp_fragment_address for mapping in held]
        self._pieces = [self.part[place.start : place.start + place.numel] for place in places]

    @property
    def part(self) -> Tensor:
        return self.flat if self._part is None else self._part

    def begin(self, dtype: torch.dtype) -> None:
        """Expect gradients of a micro-batch; add them in `dtype`, if they are the first of a step."""
        self.arrived.clear()
        if self._empty and self.flat.dtype != dtype:
            self._lay_out(dtype)

    def add(self) -> None:
        """Take the gradients that the parameters have."""
        arrived = [(view, p.grad) for view, p in zip(self.views, self.parameters, strict=True) if p.grad is not None]
        views, gradients = [view for view, _ in arrived], [gradient for _, gradient in arrived]
        if self._empty and len(arrived) < len(self.views):
            self.flat.zero_()
        if arrived and self._empty:
            torch._foreach_copy_(views, gradients)
        elif arrived:
            torch._foreach_add_(views, gradients)
        self._empty = False
        for parameter in self.parameters:
            parameter.grad = None

    def finish(self) -> list[Tensor]:
        """The pieces of the summed part, parameter by parameter. The next gradients replace these."""
        self._empty = True
        return self._pieces


class _GradientBucket:
    """Groups whose gradients one collective sums over the ranks.

    launched: whether the sum was started.
    """

    def __init__(self, held: Sequence[tuple[list[nn.Parameter], Tensor]], dtype: torch.dtype):
        """held: the parameters and the flat weights of each group. dtype: of what is sent."""
        self._ranks, self._dtype, self.launched = dist.get_world_size(), dtype, False
        device = held[0][1].device
        self._shares = [weights.numel() // self._ranks for _, weights in held]
        parts: Sequence[Tensor | None] = [None] * len(held)
        if self._ranks > 1:
            self._part = torch.empty(sum(self._shares), device=device)
            parts = self._part.split(self._shares)
            self._received = self._part
            if device.type == "cpu":  # gloo's reduce-scatter is an all-reduce, which moves twice as much
                self._received = torch.empty(self._ranks * len(self._part), dtype=dtype)
            elif dtype != torch.float32:
                self._received = torch.empty_like(self._part, dtype=dtype)
        self.groups = [_GradientGroup(*group, part) for group, part in zip(held, parts, strict=True)]
        self._sent: Tensor | None = None
        self._work: Any = None

    @property
    def complete(self) -> bool:
        """Whether the micro-batch has given every parameter a gradient."""
        return all(group.complete for group in self.groups)

    def launch(self, ranks: dist.ProcessGroup | None) -> None:
        """Start the sum over the ranks without waiting for it; a collective."""
        self.launched = True
        if self._ranks == 1:
            return
        self._sent = self._packed()
        if self._sent.device.type == "cpu":
            self._work = dist.all_to_all_single(self._received, self._sent, group=ranks, async_op=True)
        else:
            self._work = dist.reduce_scatter_tensor(self._received, self._sent, group=ranks, async_op=True)

    def finish(self) -> None:
        """Wait until the groups' parts are summed: the host with gloo, the device's stream with NCCL."""
        if self._work is not None:
            self._work.wait()
            if self._part.device.type == "cpu":
                torch.sum(self._received.view(self._ranks, -1), 0, dtype=torch.float32, out=self._part)
            elif self._received is not self._part:
                self._part.copy_(self._received)
        self._work, self._sent, self.launched = None, None, False

    def _packed(self) -> Tensor:
        """The buffer to send: for each rank its part of each group. A single group has this layout already."""
        if len(self.groups) == 1:
            return self.groups[0].flat.to(self._dtype)
        sent = torch.empty(self._ranks, len(self._part), dtype=self._dtype, device=self._part.device)
        for columns, group in zip(sent.split(self._shares, dim=1), self.groups, strict=True):
            columns.copy_(group.flat.view(self._ranks, -1))
        return sent.view(-1)


class FlatGradients:
    """Takes gradients over from autograd, and hands the sums over all ranks to DeepSpeed's ZeRO-1 optimizer.

    Buckets are sent in one order on all ranks: the last layers first.

    Args:
        optimizer: DeepSpeed's, before the first step, with `contiguous_gradients` and `overlap_comm` off.
        ranks: the process group of these collectives; None for the default one.
        dtype: of the gradients that are sent. Sums of micro-batches are fp32; sums over ranks too with gloo, while NCCL
            sums in `dtype`.
        overlap: send during the backward pass; otherwise all at its end, with the same bits.
    """

    def __init__(self, optimizer: Any, ranks: dist.ProcessGroup | None, dtype: torch.dtype, overlap: bool):
        self._optimizer, self._ranks = optimizer, ranks
        self._sent = dtype if dist.get_world_size() > 1 else None
        held = [*zip(optimizer.bit16_groups, optimizer.bit16_groups_flat, strict=True)]
        self._buckets: list[_GradientBucket] = []
        self._groups: dict[int, _GradientGroup] = {}
        for numbers in reversed(group_buckets([group["kind"] for group in optimizer.param_groups])):
            bucket = _GradientBucket([held[number] for number in numbers], dtype)
            self._buckets.append(bucket)
            self._groups |= zip(numbers, bucket.groups, strict=True)
        self._last = False
        self._hooks = []
        if overlap:
            self._hooks = [
                parameter.register_post_accumulate_grad_hook(partial(self._arrive, bucket, group))
                for bucket in self._buckets
                for group in bucket.groups
                for parameter in group.parameters
            ]

    @property
    def parts(self) -> list[Tensor]:
        """This rank's part of each group, [n]: summed over all ranks after the last backward pass."""
        return [self._groups[number].part for number in range(len(self._groups))]

    def begin(self, last: bool, converts: bool = True) -> None:
        """Expect a backward pass, the `last` of a step or not.

        converts: to fp32, also the gradients of a step's only backward pass, which are not added to others. Otherwise
            these are converted if they are sent in another precision than the model's.
        """
        self._last = last
        for group in self._groups.values():
            dtype = group.parameters[0].dtype
            keeps = last and not converts and self._sent in (None, dtype)
            group.begin(dtype if keeps else torch.float32)

    def end(self) -> None:
        """Take what the backward pass has left. After the last one, start the sums that have not begun.

        Raises UserError if a gradient came after its group was sent, as from two backward passes in one.
        """
        for bucket in self._buckets:
            for group in bucket.groups:
                if not bucket.launched:
                    group.add()
                elif any(parameter.grad is not None for parameter in group.parameters):
                    raise UserError(
                        "a gradient changed after it was sent to the other processes: this model gives gradients in "
                        "several passes. Set zero.overlap to false"
                    )
            if self._last and not bucket.launched:
                bucket.launch(self._ranks)

    def finish(self) -> None:
        """Wait for the sums over all ranks, which the step needs."""
        for bucket in self._buckets:
            bucket.finish()
        for number, group in self._groups.items():
            self._optimizer.averaged_gradients[number] = group.finish()

    def squares(self) -> Tensor:
        """The sum of squares of this rank's parts, fp64 [], with the loss scale; not finite if one of them is not."""
        runs = [run for part in self.parts for run in part.split(_RUN)]
        return torch.stack(torch._foreach_norm(runs, 2, dtype=torch.float32)).double().square().sum()

    def close(self) -> None:
        """Leave the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _arrive(self, bucket: _GradientBucket, group: _GradientGroup, parameter: nn.Parameter) -> None:
        """Take a group's gradients when they are complete. `end` finds those that come after their bucket was sent."""
        group.arrived.add(parameter)
        if group.complete and not bucket.launched:
            group.add()
        if self._last:
            self._launch_complete()

    def _launch_complete(self) -> None:
        """Launch in order, up to the first bucket that is not complete."""
        for bucket in self._buckets:
            if not bucket.complete:
                return
            if not bucket.launched:
                bucket.launch(self._ranks)
