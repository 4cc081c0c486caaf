"""Matrices cut into groups of whole layers by depth. Does not import torch: the plan of a run uses it."""

from collections.abc import Sequence
from itertools import accumulate, pairwise


def depth_slices(layers: Sequence[int], parts: int) -> list[slice]:
    """Consecutive slices of matrices, at most `parts`, of whole layers and none empty.

    Of n layers, slice k begins near layer n * (k / parts) ** 1.5. So slices are smaller near the input: there the last
    gradients are sent and the first weights are gathered, which no compute hides.

    Args:
        layers: the layer of each matrix, in the order of the model.
    """
    if not layers:
        return []
    numbers = [*accumulate((layer != following for layer, following in pairwise(layers)), initial=0)]
    chosen = [_slice_of(number, numbers[-1] + 1, parts) for number in numbers]
    ends = [at for at in range(1, len(chosen) + 1) if at == len(chosen) or chosen[at] != chosen[at - 1]]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def _slice_of(layer: int, layers: int, parts: int) -> int:
    """The slice that holds the middle of a layer. In whole numbers: all ranks and later runs must agree."""
    return max(k for k in range(parts) if (2 * layer + 1) ** 2 * parts**3 >= (2 * layers) ** 2 * k**3)
