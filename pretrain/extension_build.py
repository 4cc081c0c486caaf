"""DeepSpeed's extensions are compiled by one process of a host at a time, whoever has been killed before."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.cpp_extension import _get_build_directory


def build_extension(builder: Any) -> None:
    """Build and load an extension of DeepSpeed (`builder`: its OpBuilder), unless it cannot be built here.

    PyTorch marks a build by a file `lock`, which stays if the builder is killed, and for which all later starts would
    wait for ever. The lock taken here goes with its processes, so whoever holds it knows such a file to be left over.
    """
    if builder is None or not builder.is_compatible(verbose=False):
        return  # DeepSpeed does without
    folder = Path(_get_build_directory(builder.name, False))
    with open(folder / ".maskwright", "a") as file:
        with contextlib.suppress(OSError):  # a network file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
            (folder / "lock").unlink(missing_ok=True)
        with _as_standard_input(file.fileno()):
            builder.load()


@contextlib.contextmanager
def _as_standard_input(descriptor: int) -> Iterator[None]:
    """The compilers' driver, ninja, inherits that alone: it outlives a killed builder, and has the lock until it ends.

    Two that write the same files at once would each read what the other has half written.
    """
    usual = os.dup(0)
    os.dup2(descriptor, 0)
    try:
        yield
    finally:
        os.dup2(usual, 0)
        os.close(usual)
