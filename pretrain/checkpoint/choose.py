"""The checkpoint to go on from: the newest that all ranks find intact."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from data_prep.errors import UserError
from pretrain.checkpoint.folder import committed
from pretrain.checkpoint.manifest import Checkpoint, read, verify


def newest_verified(
    folder: Path, report: Callable[[str], None], check: Callable[[Checkpoint], str | None] = lambda found: None
) -> Checkpoint | None:
    """The newest checkpoint that every rank finds intact; a collective. None if there is no checkpoint at all.

    Args:
        check: says what is wrong with the state of one whose files are intact, or None.
        report: is told, on rank 0, of each damaged checkpoint that was passed over.

    Raises:
        UserError: if there are checkpoints, and all are damaged.
    """
    agreed: list[Any] = [committed(folder)]
    dist.broadcast_object_list(agreed)
    problems: list[str] = []
    for _, path in agreed[0]:
        problem = verify_together(path)
        if problem is None and (problem := check(found := read(path))) is None:
            return found
        problems.append(problem)
        if dist.get_rank() == 0:
            report(f"checkpoint {path.name} is damaged and passed over: {problem}")
    if problems:
        raise UserError(
            f"{folder}: no checkpoint is intact ({problems[0]}); restore one, or move the folder away to start again"
        )
    return None


def verify_together(path: Path) -> str | None:
    """`verify` with the files dealt out over the ranks; a collective, with one answer for all."""
    found: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, verify(path, dist.get_rank(), dist.get_world_size()))
    return next((problem for problem in found if problem), None)
