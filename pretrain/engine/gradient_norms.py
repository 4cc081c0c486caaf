"""Gradient norms of the model's parts: embeddings, each layer, head."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pretrain.engine.deepspeed_state import named_gradients

_RUN = 1 << 18  # elements in one fp32 sum: over millions, a CPU loses three digits


def group_of(name: str) -> str:
    """The part of the model that a parameter belongs to, by its name: "embeddings", "layer_3", "head".

    Also of a model of transformers: the first number in a name is the number of a layer. The vocabulary matrix
    counts as embeddings, tied or not.
    """
    number = next((part for part in name.split(".") if part.isdigit()), None)
    if number is not None:
        return f"layer_{int(number)}"
    return "embeddings" if "embed" in name else "head"


class GroupNorms:
    """The parts' gradients under every ZeRO stage, measured where they lie.

    Args:
        engine: DeepSpeed's.
        names: of all parameters.
    """

    def __init__(self, engine: Any, names: Sequence[str]):
        self._engine = engine
        self.groups = sorted({group_of(name) for name in names}, key=_place)

    def squares(self) -> Tensor:
        """This rank's share of the sums of squares, fp64 [groups] on the device; added over the ranks, they are whole.

        After the last backward pass of a step and before clipping; the host does not wait for it.
        """
        by_group: dict[str, list[Tensor]] = {group: [] for group in self.groups}
        for name, gradient in named_gradients(self._engine):
            by_group[group_of(name)].append(gradient)
        sums = torch.stack([sum_of_squares(by_group[group], self._engine.device) for group in self.groups])
        return sums / self._scale() ** 2

    def _scale(self) -> float:
        """Factor by which norms are too large: root of the number of ranks with all gradients, or fp16's loss scale."""
        if self._engine.zero_optimization_stage() == 0:
            return self._engine.world_size**0.5
        return self._engine.optimizer.loss_scale


def sum_of_squares(tensors: list[Tensor], device: torch.device) -> Tensor:
    """The sum over all elements: fp64 [] on the device, without waiting for it."""
    if not tensors:
        return torch.zeros((), dtype=torch.float64, device=device)
    runs = [run for tensor in tensors for run in tensor.reshape(-1).split(_RUN)]
    norms = torch._foreach_norm(runs, 2, dtype=torch.float32)
    return torch.stack(norms).to(device, torch.float64).square().sum()


def _place(group: str) -> tuple[int, int]:
    """Embeddings, the layers in turn, the head."""
    return ("embeddings", "layer", "head").index(group.partition("_")[0]), int(group.partition("_")[2] or 0)
