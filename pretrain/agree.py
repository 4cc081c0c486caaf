"""Steps of the set-up on which all ranks must agree: one rank's failure is everybody's, so that none waits for ever."""

import errno
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from data_prep.errors import UserError

T = TypeVar("T")

_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


class EndOfRun(UserError):
    """Raised on every rank at the same step, where all can still take part in a collective."""


def together(function: Callable[[], T]) -> T:
    """Run `function` on every rank; a collective.

    Raises:
        UserError: on every rank, if any raised one; on every other rank, if the disk of one failed.
        RuntimeError: on every other rank, if one raised something else.
        Exception: on the rank itself, whatever it raised.
    """
    result: Any = None
    error: Exception | None = None
    try:
        result = function()
    except Exception as found:
        error = found
    said, expected = _said(error)
    everyone: list[tuple[str | None, bool]] = [(None, False)] * dist.get_world_size()
    dist.all_gather_object(everyone, (said, expected))
    if error and not isinstance(error, UserError):
        raise error
    for said, expected in everyone:
        if said:
            raise UserError(said) if expected else RuntimeError(said)
    return result


def disk_fault(error: Exception) -> str | None:
    """A disk that takes no more, or fails, in a few words; None for any other error."""
    if not isinstance(error, OSError) or error.errno not in _DISK_FAULTS:
        return None
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def _said(error: Exception | None) -> tuple[str | None, bool]:
    """What the other ranks are told of an error, and whether it is one that people understand."""
    if error is None:
        return None, False
    if isinstance(error, UserError):
        return str(error), True
    fault = disk_fault(error)
    return fault or f"rank {dist.get_rank()}: {type(error).__name__}: {error}", fault is not None


def check_equal(value: str, what: str) -> None:
    """A collective.

    Raises:
        UserError: on every rank, unless `value` is the same on all of them.
    """
    values: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(values, value)
    if len(set(values)) > 1:
        other = next(rank for rank, found in enumerate(values) if found != values[0])
        raise UserError(f"rank {other} has another {what} than rank 0; give every node the same files")


def host_names() -> list[str]:
    """Where each rank is; a collective."""
    names: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(names, socket.gethostname())
    return names


def on_main(function: Callable[[], T]) -> T | None:
    """`together`, with the function run on rank 0 alone; None elsewhere."""
    return together(lambda: function() if dist.get_rank() == 0 else None)
