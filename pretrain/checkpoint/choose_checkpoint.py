"""Choose the checkpoint to resume from: the newest one that all ranks find intact."""

from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from data_prep.errors import UserError
from pretrain.checkpoint.manifest import Checkpoint, read, verify
from pretrain.checkpoint.retention import committed
from pretrain.distributed import all_gather_json, broadcast_json


def newest_verified(
    folder: Path, report: Callable[[str], None], check: Callable[[Checkpoint], str | None] = lambda found: None
) -> Checkpoint | None:
    """The newest checkpoint that every rank finds intact, or None if there is no checkpoint; a collective.

    Args:
        check: returns the problem with the state of a checkpoint whose files are intact, or None.
        report: called on rank 0 with a message for each damaged checkpoint that is skipped.

    Raises:
        UserError: if all checkpoints are damaged.
    """
    problems: list[str] = []
    for _, path in committed_on_rank_zero(folder):
        problem = verify_on_all_ranks(path)
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


def committed_on_rank_zero(folder: Path) -> list[tuple[int, Path]]:
    """`committed` as rank 0 sees the folder; a collective."""
    found = broadcast_json([(step, path.name) for step, path in committed(folder)])
    return [(step, folder / name) for step, name in found]


def verify_on_all_ranks(path: Path) -> str | None:
    """`verify`, with the files distributed over the ranks; a collective that returns the same problem on all ranks."""
    found = all_gather_json(verify(path, dist.get_rank(), dist.get_world_size()))
    return next((problem for problem in found if problem), None)
