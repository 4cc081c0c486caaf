"""Choose the checkpoint to resume from: one that all ranks find intact."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from data_prep.errors import UserError
from pretrain.checkpoint.manifest import Checkpoint, read, verify
from pretrain.checkpoint.retention import committed
from pretrain.distributed import all_gather_json

Check = Callable[[Checkpoint], str | None]


def newest_verified(
    folder: Path, report: Callable[[str], None], check: Check = lambda found: None
) -> Checkpoint | None:
    """The newest checkpoint that every rank finds intact, or None if there is no checkpoint; a collective.

    Args:
        check: returns the problem with the state of a checkpoint whose files are intact, or None.
        report: called on rank 0 with a message for each damaged checkpoint that is skipped.

    Raises:
        UserError: if all checkpoints are damaged.
    """
    problems: list[str] = []

    def skip(path: Path, problem: str) -> None:
        problems.append(problem)
        if dist.get_rank() == 0:
            report(f"checkpoint {path.name} is damaged and skipped: {problem}")

    found = first_intact(folder, check, order=lambda step: -step, skip=skip)
    if problems and found is None:
        raise UserError(
            f"{folder}: no checkpoint is intact ({problems[0]}); restore one, or move the folder away to start again"
        )
    return found


def first_intact(
    folder: Path,
    check: Check,
    order: Callable[[int], Any],
    skip: Callable[[Path, str], object] = lambda *_: None,
) -> Checkpoint | None:
    """The first intact checkpoint of RUN/checkpoints, in an order by step; a collective.

    `skip` is called with the path of each damaged one, and its problem. Rank 0 lists the folder.
    """
    names = all_gather_json([path.name for _, path in sorted(committed(folder), key=lambda entry: order(entry[0]))])[0]
    for name in names:
        problem = verify_on_all_ranks(folder / name)
        if problem is None and (problem := check(found := read(folder / name))) is None:
            return found
        skip(folder / name, problem)
    return None


def verify_on_all_ranks(path: Path) -> str | None:
    """`verify`, with the files distributed over the ranks; a collective that returns the same problem on all ranks."""
    problems = all_gather_json(verify(path, dist.get_rank(), dist.get_world_size()))
    return next((problem for problem in problems if problem), None)
