"""The files of a run folder that go to MLflow. A file outside the folder never does."""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def open_inside(folder: Path, name: str) -> BinaryIO:
    """Open the regular file `name` below `folder`.

    Each part of the path is opened from the folder above it, and no part may be a symbolic link. So a folder that is
    swapped for a link at the same moment leads nowhere.

    Raises:
        OSError: for an absolute path, `..`, a symbolic link, or anything but a regular file.
        ValueError: for a name that no file can have.
    """
    *folders, last = name.split("/")
    if {"", ".", ".."} & {*folders, last}:
        raise PermissionError(f"{name!r} is not a path inside a folder")
    with contextlib.ExitStack() as stack:

        def opened(part: str | Path, flags: int, above: int | None = None) -> int:
            descriptor = os.open(part, os.O_RDONLY | os.O_NONBLOCK | flags, dir_fd=above)
            stack.callback(os.close, descriptor)
            return descriptor

        above = opened(folder, os.O_DIRECTORY)
        for part in folders:
            above = opened(part, os.O_DIRECTORY | os.O_NOFOLLOW, above)
        file = opened(last, os.O_NOFOLLOW, above)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise PermissionError(f"{name!r} is not a regular file")
        return os.fdopen(os.dup(file), "rb")


@contextlib.contextmanager
def private_copy(file: BinaryIO, name: str) -> Iterator[Path]:
    """A copy called `name` in a new folder that only this user reads: MLflow's client opens files by path."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / name
        with open(copy, "wb") as out:
            shutil.copyfileobj(file, out)
        yield copy
