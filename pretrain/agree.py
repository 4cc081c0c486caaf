"""Steps of the set-up on which all ranks must agree: one rank's failure is everybody's, so that none waits for ever."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from data_prep.errors import UserError

T = TypeVar("T")


def together(function: Callable[[], T]) -> T:
    """Run `function` on every rank; a collective.

    Raises:
        UserError: on every rank, the first that any rank raised.
    """
    result: Any = None
    error: str | None = None
    try:
        result = function()
    except UserError as found:
        error = str(found)
    errors: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(errors, error)
    if first := next((e for e in errors if e), None):
        raise UserError(first)
    return result


def on_main(function: Callable[[], T]) -> T | None:
    """`together`, with the function run on rank 0 alone; None elsewhere."""
    return together(lambda: function() if dist.get_rank() == 0 else None)
