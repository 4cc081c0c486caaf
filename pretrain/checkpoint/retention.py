"""The checkpoints in RUN/checkpoints: which there are, which are kept, and what is cleared away."""

import itertools
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from data_prep.files import fsync_path

_FOLDER = re.compile(r"step-(\d{8})")


def name_of(step: int) -> str:
    """The name of a committed checkpoint's folder."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step of a committed checkpoint's folder; None for any other name."""
    match = _FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def committed(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of the committed checkpoints in RUN/checkpoints, newest first."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        step = step_of(path.name)
        if step is not None and path.is_dir():
            found.append((step, path))
    return sorted(found, reverse=True)


def retained(steps: Sequence[int], keep: int, keep_every: int | None) -> dict[int, str]:
    """Which of the steps are kept, and why: "newest", or "every N"."""
    kept = {step: f"every {keep_every}" for step in steps if keep_every and step % keep_every == 0}
    return kept | dict.fromkeys(sorted(steps, reverse=True)[:keep], "newest")


def remove_leftovers(folder: Path) -> None:
    """Remove what killed saves left behind in RUN/checkpoints; never a committed checkpoint."""
    for path in folder.glob("step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def discard(path: Path) -> Path:
    """Rename a checkpoint that is no longer kept: half deleted, it must not look committed. Returns the new path."""
    return path.rename(path.with_name(path.name + ".old.tmp"))


def set_aside(folder: Path, after_step: int) -> None:
    """Rename the checkpoints of later steps: a run that goes on from `after_step` passed over or left them.

    They no longer count as checkpoints of the run, but nobody's bytes are deleted.
    """
    for step, path in committed(folder):
        if step > after_step:
            number = next(n for n in itertools.count(1) if not path.with_name(f"{path.name}.aside-{n}").exists())
            path.rename(path.with_name(f"{path.name}.aside-{number}"))
    fsync_path(folder)
