"""Sum of gradients over ranks: from flat tensors for each parameter group, or in buckets through DeepSpeed."""

from pretrain.config import Config

MATRIX_GROUPS = 6  # by depth: what is sent after the backward pass gets smaller with more, but each is a collective
_LARGEST_BUCKET = 500_000_000  # elements, as in DeepSpeed
_LEAST_OVERLAPPED = 25_000_000  # smaller buckets cost more to start than their overlap with the backward pass gains


def uses_flat_gradients(config: Config) -> bool:
    """Whether gradients go through pretrain.engine.flat_gradients."""
    return config.zero.stage == 1 and config.zero.offload == "none"


def matrix_groups(config: Config) -> int:
    """The number of parameter groups that the model's matrices make; fewer if it has fewer matrices."""
    return MATRIX_GROUPS if uses_flat_gradients(config) else 1


def bucket_size(parameters: int, device: str) -> int:
    """The number of elements of a gradient bucket, which is reduced in one call.

    A buffer of that size is allocated, so no more than there are parameters. On a GPU four buckets, unless they get too
    small: all except the last are reduced during the backward pass.
    """
    wanted = parameters if device == "cpu" else max(-(-parameters // 4), min(parameters, _LEAST_OVERLAPPED))
    return min(wanted, _LARGEST_BUCKET)
