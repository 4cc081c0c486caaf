"""ZeRO stage 1's gather of the updated weights, behind the next forward pass."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.engine.flat_gradients import forward_order


class WeightGathers:
    """Gathers the ranks' parts of the model's weights, group by group in the order of the forward pass.

    The forward pass waits for a group before the first layer that needs it. All other readers call `wait` first.

    Args:
        optimizer: DeepSpeed's.
        ranks: the process group of these collectives; None for the default one.
        model: the model that reads the weights.
        by_layer: asked before each forward pass, whether each child of the model, and each layer in a list of them,
            waits for its own weights. Otherwise the forward pass waits for all before it begins, as a compiled graph
            must, and a model whose modules may read each other's weights.
        overlap: otherwise `publish` waits for all.
    """

    def __init__(
        self,
        optimizer: Any,
        ranks: dist.ProcessGroup | None,
        model: nn.Module,
        by_layer: Callable[[], bool],
        overlap: bool,
    ):
        self._optimizer, self._ranks, self._overlap = optimizer, ranks, overlap
        self._order = forward_order(optimizer)
        self._works: dict[int, Any] = {}
        self._by_layer = by_layer
        self._hooks = []
        if overlap and dist.get_world_size() > 1:
            needed = self._needed(model)
            whole = partial(self._before_model, needed.pop(model))
            self._hooks = [
                model.register_forward_pre_hook(whole),
                *(
                    module.register_forward_pre_hook(partial(self._before_layer, groups))
                    for module, groups in needed.items()
                ),
            ]

    @torch.no_grad()
    def publish(self, masters: Sequence[Tensor]) -> None:
        """Copy this rank's fp32 weights, a tensor for each group, into the model's, and start the gathers.

        A collective.
        """
        parts = [parts[dist.get_rank()] for parts in self._optimizer.parallel_partitioned_bit16_groups]
        torch._foreach_copy_(parts, [*masters])
        if dist.get_world_size() > 1:
            for number in self._order:
                whole = self._optimizer.bit16_groups_flat[number]
                self._works[number] = dist.all_gather_into_tensor(whole, parts[number], self._ranks, async_op=True)
        if not self._overlap:
            self.wait()

    def wait(self, groups: Iterable[int] | None = None) -> None:
        """Wait for these groups, or all: the host with gloo, the device's stream with NCCL."""
        for number in self._order if groups is None else groups:
            if (work := self._works.pop(number, None)) is not None:
                work.wait()

    def close(self) -> None:
        """Wait for all, and leave the model."""
        self.wait()
        for hook in self._hooks:
            hook.remove()

    def _before_model(self, groups: Iterable[int], module: nn.Module, inputs: object) -> None:
        self.wait(groups if self._by_layer() else None)

    def _before_layer(self, groups: Iterable[int], module: nn.Module, inputs: object) -> None:
        if not torch.compiler.is_compiling() and self._works:
            self.wait(groups)

    def _needed(self, model: nn.Module) -> dict[nn.Module, list[int]]:
        """The groups that the model itself, its children and its layers need."""
        group_of = {p: number for number, held in enumerate(self._optimizer.bit16_groups) for p in held}
        children = [*model.children()]
        layers = [layer for child in children if isinstance(child, nn.ModuleList) for layer in child]
        needed = {model: [*model.parameters(recurse=False)]}
        needed |= {part: [*part.parameters()] for part in [*children, *layers] if not isinstance(part, nn.ModuleList)}
        return {module: sorted({group_of[p] for p in held}) for module, held in needed.items()}
