"""Small real file systems that tests fill."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of `size` ("512k", "4m") at `folder`; the test is skipped where none can be mounted."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"a full disk needs root to mount one: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, leave: int = 0) -> Path:
    """Fill the disk except `leave` bytes; return the file."""
    path = folder / "filler"
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while leave == 0 or shutil.disk_usage(folder).free > leave:
            file.write(bytes(4096))
    return path
