"""ZeRO stage 1's gather of the updated weights, behind the next forward pass."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.engine.gradient_buckets import group_buckets


class _WeightBucket:
    """Groups that one collective gathers.

    wholes: the weights of each group, [n]. parts: of them this rank's, [n / ranks], which are views.
    """

    def __init__(self, wholes: list[Tensor], parts: list[Tensor]):
        self._wholes, self._parts = wholes, parts
        self._gathered, self._work = wholes[0], None

    def start(self, ranks: dist.ProcessGroup | None) -> None:
        """Start the gather; a collective."""
        part = self._parts[0]
        if len(self._wholes) > 1:
            self._gathered = part.new_empty(sum(whole.numel() for whole in self._wholes))
            part = self._gathered.chunk(dist.get_world_size())[dist.get_rank()]
            torch.cat(self._parts, out=part)
        self._work = dist.all_gather_into_tensor(self._gathered, part, ranks, async_op=True)

    @torch.no_grad()
    def wait(self) -> None:
        """Wait for the weights, if their gather has started: the host with gloo, the device's stream with NCCL."""
        if self._work is None:
            return
        self._work.wait()
        if len(self._wholes) > 1:
            rows = self._gathered.view(dist.get_world_size(), -1)
            columns = rows.split([part.numel() for part in self._parts], dim=1)
            for whole, gathered in zip(self._wholes, columns, strict=True):
                whole.view(gathered.shape).copy_(gathered)
        self._gathered, self._work = self._wholes[0], None


class WeightGathers:
    """Gathers the ranks' parts of the model's weights, bucket by bucket in the order of the forward pass.

    The forward pass waits for a bucket before the first layer that needs it. All other readers call `wait` first.

    Args:
        optimizer: DeepSpeed's.
        ranks: the process group of these collectives; None for the default one.
        model: the model that reads the weights.
        by_layer: asked before each forward pass, whether each child of the model, and each layer in a list of them,
            waits for its own weights. Otherwise the forward pass waits for all before it begins, as a compiled graph
            must, and a model whose modules may read each other's weights.
        overlap: otherwise `start` waits for all.

    Attributes:
        parts: this rank's part of each group of the model's weights.
    """

    def __init__(
        self,
        optimizer: Any,
        ranks: dist.ProcessGroup | None,
        model: nn.Module,
        by_layer: Callable[[], bool],
        overlap: bool,
    ):
        self._ranks, self._overlap, self._by_layer = ranks, overlap, by_layer
        self.parts = [parts[dist.get_rank()] for parts in optimizer.parallel_partitioned_bit16_groups]
        self._buckets: list[_WeightBucket] = []
        bucket_of: dict[nn.Parameter, _WeightBucket] = {}
        for numbers in group_buckets([group["kind"] for group in optimizer.param_groups]):
            wholes, parts = [optimizer.bit16_groups_flat[n] for n in numbers], [self.parts[n] for n in numbers]
            self._buckets.append(_WeightBucket(wholes, parts))
            bucket_of |= {p: self._buckets[-1] for n in numbers for p in optimizer.bit16_groups[n]}
        self._hooks = []
        if overlap and dist.get_world_size() > 1:
            needed = {module: dict.fromkeys(bucket_of[p] for p in held) for module, held in _readers(model).items()}
            whole = partial(self._before_model, needed.pop(model))
            self._hooks = [
                model.register_forward_pre_hook(whole),
                *(
                    module.register_forward_pre_hook(partial(self._before_layer, buckets))
                    for module, buckets in needed.items()
                ),
            ]

    def start(self) -> None:
        """Start the gathers of `parts`; a collective."""
        if dist.get_world_size() > 1:
            for bucket in self._buckets:
                bucket.start(self._ranks)
        if not self._overlap:
            self.wait()

    def wait(self) -> None:
        """Wait for all weights."""
        _wait_for(self._buckets)

    def close(self) -> None:
        """Wait for all, and leave the model."""
        self.wait()
        for hook in self._hooks:
            hook.remove()

    def _before_model(self, buckets: Iterable[_WeightBucket], module: nn.Module, inputs: object) -> None:
        _wait_for(buckets if self._by_layer() else self._buckets)

    def _before_layer(self, buckets: Iterable[_WeightBucket], module: nn.Module, inputs: object) -> None:
        if not torch.compiler.is_compiling():
            _wait_for(buckets)


def _wait_for(buckets: Iterable[_WeightBucket]) -> None:
    for bucket in buckets:
        bucket.wait()


def _readers(model: nn.Module) -> dict[nn.Module, list[nn.Parameter]]:
    """The parameters that the model itself, its children and its layers read."""
    children = [*model.children()]
    layers = [layer for child in children if isinstance(child, nn.ModuleList) for layer in child]
    readers = {model: [*model.parameters(recurse=False)]}
    return readers | {
        part: [*part.parameters()] for part in [*children, *layers] if not isinstance(part, nn.ModuleList)
    }
