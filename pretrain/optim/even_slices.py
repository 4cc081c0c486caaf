"""A list of tensors cut into parts of about equal size. Does not import torch: the plan of a run uses it."""

from collections.abc import Sequence


def even_slices(numels: Sequence[int], parts: int) -> list[slice]:
    """Consecutive slices of tensors with these numbers of elements: at most `parts`, about equal, none empty."""
    total, before, chosen = sum(numels), 0, []
    for numel in numels:
        chosen.append((2 * before + numel) * parts // (2 * total))  # the part at the tensor's middle
        before += numel
    ends = [at for at in range(1, len(chosen) + 1) if at == len(chosen) or chosen[at] != chosen[at - 1]]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
