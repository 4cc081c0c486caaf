"""Checkpoints of two small files, saved with the code of a run."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from pretrain.checkpoint import Checkpoint, Parts, Saver
from pretrain.checkpoint.saver import Snapshot, write_parts
from pretrain.config import CheckpointConfig

MODEL = "deepspeed/model.pt"
OPTIMIZER = "deepspeed/zero_pp_rank_0_mp_rank_00_optim_states.pt"


def in_pieces(sink: IO[bytes]) -> None:
    """3,000 bytes."""
    for part in range(3):
        sink.write(bytes([part]) * 1000)


def snapshot(folder: Path, copy: bool) -> Parts:
    """Two files."""
    return {MODEL: in_pieces, OPTIMIZER: in_pieces}


def make_checkpoint(folder: Path, step: int) -> Path:
    """A committed checkpoint in a folder of checkpoints."""
    path = folder / f"step-{step:08d}"
    Checkpoint(path, step, {}, write_parts(path, snapshot(path, False))).write()
    return path


def saver(
    folder: Path,
    save: Snapshot = snapshot,
    told: list[Any] | None = None,
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> Saver:
    """A saver whose reports go to `told`."""
    report = lambda step, metrics: told.append((step, metrics)) if told is not None else None  # noqa: E731
    return Saver(folder, CheckpointConfig(**settings), save, report, clock=clock)


def commit(folder: Path, step: int, state: dict[str, Any], save: Snapshot = snapshot, **settings: Any) -> Path:
    """Save a checkpoint and wait for all that follows it."""
    used = saver(folder, save, asynchronous=False, **settings)
    used.begin(step, state)
    used.close()
    return folder / f"step-{step:08d}"


def must_be_committed(last: int, every: int, asynchronous: bool) -> int:
    """The step whose checkpoint must be there if `last` is the last step that was trained; 0 if none.

    The checkpoint of the last step with one or, asynchronously, the one before: each is committed before the next one
    begins. So no more is lost than `every` steps, and those made while a checkpoint is being written.
    """
    due = (last - 1) // every * every  # the step after it was made when that one, or the one before, was there
    return max(0, due - every * asynchronous)
