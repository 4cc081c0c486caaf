"""Sum of gradients over ranks: from flat tensors for each parameter group, or in buckets through DeepSpeed."""

from collections.abc import Sequence

from pretrain.config import Config

MATRIX_GROUPS = 8  # by depth: what is sent after the backward pass gets smaller with more, but each is a collective
_LARGEST_BUCKET = 500_000_000  # elements, as in DeepSpeed
_LEAST_OVERLAPPED = 25_000_000  # smaller buckets cost more to start than their overlap with the backward pass gains


def uses_flat_gradients(config: Config) -> bool:
    """Whether gradients go through pretrain.engine.flat_gradients."""
    return config.zero.stage == 1 and config.zero.offload == "none"


def matrix_groups(config: Config) -> int:
    """The number of parameter groups that the model's matrices make; fewer if it has fewer matrices."""
    return MATRIX_GROUPS if uses_flat_gradients(config) else 1


def group_buckets(kinds: Sequence[str]) -> list[list[int]]:
    """Lists of parameter groups that one collective sends together, in the order of the forward pass.

    The first bucket has all groups that the first layers need. Their gradients are complete last, so nothing is lost by
    sending them together, and there is one latency in place of several.

    Args:
        kinds: of the optimizer's groups, with the matrices by depth.

    Returns:
        The numbers of the groups of each bucket.
    """
    matrices = [number for number, kind in enumerate(kinds) if kind == "matrix"]
    others = [number for number, kind in enumerate(kinds) if kind != "matrix"]
    return [others + matrices[:1], *([number] for number in matrices[1:])]


def bucket_size(parameters: int, device: str) -> int:
    """The number of elements of a gradient bucket, which is reduced in one call.

    A buffer of that size is allocated, so no more than there are parameters. On a GPU four buckets, unless they get too
    small: all except the last are reduced during the backward pass.
    """
    wanted = parameters if device == "cpu" else max(-(-parameters // 4), min(parameters, _LEAST_OVERLAPPED))
    return min(wanted, _LARGEST_BUCKET)
