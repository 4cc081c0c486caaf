"""Choose the checkpoint to resume from: one that all ranks find intact."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch.distributed as dist

from data_prep.common.errors import UserError
from pretrain.checkpoint.manifest import Checkpoint, condition, read, verify
from pretrain.checkpoint.retention import committed
from pretrain.distributed import all_gather_json

StateCheck = Callable[[Checkpoint], str | None]


def newest_verified(
    folder: Path, report: Callable[[str], None], check: StateCheck = lambda checkpoint: None
) -> Checkpoint | None:
    """The newest checkpoint that every rank finds intact, or None if there is no checkpoint; a collective.

    Args:
        check: returns the problem with the state of a checkpoint whose files are intact, or None.
        report: called on rank 0 with a message for each damaged or other checkpoint that is skipped.

    Raises UserError if all checkpoints are damaged.
    """
    problems: list[str] = []

    def skip(path: Path, problem: str) -> None:
        problems.append(problem)
        if dist.get_rank() == 0:
            report(f"checkpoint {path.name} is {condition(problem)} and skipped: {problem}")

    checkpoint = first_intact(folder, [path.name for _, path in committed(folder)], check, skip)
    if problems and checkpoint is None:
        raise UserError(
            f"{folder}: no checkpoint can be used ({problems[0]}); restore one, or move the folder away to start again"
        )
    return checkpoint


def first_intact(
    folder: Path, names: Sequence[str], check: StateCheck, skip: Callable[[Path, str], object] = lambda *_: None
) -> Checkpoint | None:
    """The first intact checkpoint of these in a folder, as rank 0 lists them; a collective.

    `skip` is called with the path of each damaged one, and its problem.
    """
    for path in [folder / name for name in all_gather_json(names)[0]]:
        problems = all_gather_json(verify(path, dist.get_rank(), dist.get_world_size()))  # each rank reads some files
        problem = next((problem for problem in problems if problem), None)
        if problem is None and (problem := check(checkpoint := read(path))) is None:
            return checkpoint
        skip(path, problem)
    return None
