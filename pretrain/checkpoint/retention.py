"""Retention of checkpoints in RUN/checkpoints: list, keep, rename and remove."""

import itertools
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from data_prep.common.files import fsync_path, refuse_link
from pretrain.config import CheckpointConfig

_FOLDER = re.compile(r"step-(\d{8})")


def step_of(name: str) -> int | None:
    """The step of a committed checkpoint's folder; None for any other name."""
    match = _FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def committed(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of the committed checkpoints in RUN/checkpoints, newest first. Raises UserError if it is a link."""
    checkpoints = []
    for path in refuse_link(folder).iterdir() if folder.is_dir() else ():
        step = step_of(path.name)
        if step is not None and path.is_dir():
            checkpoints.append((step, path))
    return sorted(checkpoints, reverse=True)


def retained(steps: Sequence[int], settings: CheckpointConfig) -> dict[int, str]:
    """The steps to keep, each with the reason: "newest", "every N" or "in at_steps"."""
    every = settings.keep_every
    kept = {step: f"every {every}" for step in steps if every and step % every == 0}
    kept |= {step: "in at_steps" for step in steps if step in settings.at_steps}
    return kept | dict.fromkeys(sorted(steps, reverse=True)[: settings.keep], "newest")


def remove_leftovers(folder: Path) -> None:
    """Remove the folders of interrupted saves from RUN/checkpoints; never a committed checkpoint."""
    for path in folder.glob("step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def set_aside(folder: Path, after_step: int) -> None:
    """Rename the checkpoints of steps after `after_step`, where the run resumes, and remove interrupted saves.

    The renamed ones no longer count as checkpoints of the run, but no file of them is deleted.
    """
    remove_leftovers(folder)
    for step, path in committed(folder):
        if step > after_step:
            number = next(n for n in itertools.count(1) if not path.with_name(f"{path.name}.aside-{n}").exists())
            path.rename(path.with_name(f"{path.name}.aside-{number}"))
    fsync_path(folder)
