"""Training with failing disks or wrong clocks, through replaced system calls; see faulty.c."""

import atexit
import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.forked import ROOT

SOURCE = Path(__file__).with_suffix(".c")


@functools.cache
def library() -> Path:
    """Compiled; the test is skipped where there is no C compiler."""
    if not (compiler := shutil.which("gcc")):
        pytest.skip("needs gcc: it compiles the library that makes system calls fail")
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "faulty.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(path), str(SOURCE), "-ldl"], check=True)
    return path


def disk(switch: Path, rank: int, operation: str, number: int, path: str) -> dict[str, str]:
    """An environment where an operation ("write", "fsync", "rename") on paths that contain `path` fails.

    Args:
        switch: it does so while this file exists.
        number: the errno.
    """
    names = {"RANK": rank, "OPERATION": operation, "ERRNO": number, "PATH": path, "SWITCH": switch}
    return {f"FAULTY_{name}": str(value) for name, value in names.items()}


def start(log: Path, config: Path, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    """`maskwright train` on two processes in this environment."""
    command = [sys.executable, "-m", "launchers.cli", "train", str(config), "--procs", "2"]
    environment = runs.environment() | {"DS_ACCELERATOR": "cpu", "LD_PRELOAD": str(library())} | environment
    with open(log, "ab") as output:
        return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
