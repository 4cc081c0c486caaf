"""Exchange values between ranks, and agree on failures: if one rank fails, every rank raises."""

import errno
import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from data_prep.common.errors import UserError

T = TypeVar("T")

# What gloo and NCCL say when another rank is gone.
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "remote process exited", "Broken pipe")
_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


def all_gather_json(value: Any) -> list[Any]:
    """The JSON values of all ranks, by rank; a collective. Tuples arrive as lists.

    PyTorch's object collectives unpickle received data, so they could run code from the network.

    Raises RuntimeError if a rank sent anything other than JSON.
    """
    own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    if dist.get_backend() == "nccl":  # which takes tensors from GPUs alone
        own = own.cuda()
    sizes = [torch.zeros(1, dtype=torch.int64, device=own.device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(own)], device=own.device))
    padded = own.new_zeros(int(max(sizes)))
    padded[: len(own)] = own
    received = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(received, padded)
    return [_decoded(text[: int(size)], rank) for rank, (text, size) in enumerate(zip(received, sizes, strict=True))]


def _decoded(text: Tensor, rank: int) -> Any:
    try:
        return json.loads(bytes(text.cpu().numpy()))
    except (ValueError, RecursionError):
        raise RuntimeError(f"rank {rank} sent something else than JSON: is another program connected?") from None


def run_on_all_ranks(function: Callable[[], T]) -> T:
    """Run `function` on every rank; a collective.

    Raises:
        UserError: on every rank, if any rank raised one; on every other rank, if the disk of a rank failed.
        RuntimeError: on every other rank, if a rank raised another error.
        Exception: on the failed rank, its own error.
    """
    result: Any = None
    error: Exception | None = None
    try:
        result = function()
    except Exception as raised:
        error = raised
    said, expected = _said(error)
    everyone = all_gather_json((said, expected))
    if error and not isinstance(error, UserError):
        raise error
    for said, expected in everyone:
        if said:
            raise UserError(said) if expected else RuntimeError(said)
    return result


def known_cause(error: Exception) -> str | None:
    """The cause of a failure in one line, where a traceback would not help; None for any other error."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _LOST_PEER):
        return "a process of the run died (killed, or out of memory?), which ends the others too"
    return _disk_fault(error)


def _disk_fault(error: Exception) -> str | None:
    """A short description of a full or failed disk; None for any other error."""
    if not isinstance(error, OSError) or error.errno not in _DISK_FAULTS:
        return None
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def _said(error: Exception | None) -> tuple[str | None, bool]:
    """The message about an error for other ranks, and whether it is fit for users."""
    if error is None:
        return None, False
    if isinstance(error, UserError):
        return str(error), True
    fault = _disk_fault(error)
    return fault or f"rank {dist.get_rank()}: {type(error).__name__}: {error}", fault is not None


def require_equal_on_ranks(value: str, what: str) -> None:
    """Require that `value` is equal on all ranks; a collective.

    Raises UserError on every rank, unless `value` is the same on all of them.
    """
    values = all_gather_json(value)
    if len(set(values)) > 1:
        other = next(rank for rank, other_value in enumerate(values) if other_value != values[0])
        raise UserError(f"rank {other} has another {what} than rank 0; give every node the same files")


def run_on_rank_zero(function: Callable[[], T]) -> T | None:
    """`run_on_all_ranks`, with the function run on rank 0 alone; None elsewhere."""
    return run_on_all_ranks(lambda: function() if dist.get_rank() == 0 else None)


def print_on_rank_zero(text: str) -> None:
    """Print a line on standard error once for all ranks."""
    if dist.get_rank() == 0:
        print(text, file=sys.stderr, flush=True)
