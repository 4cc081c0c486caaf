"""Repeat an action, each time killed at the next file-system operation; each attempt is a forked child."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.support.forked import ROOT

OPERATIONS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"})


def kill_at_every_operation(folder: Path, work: Callable[[Path], None], more: Iterable[str] = ()) -> None:
    """`work` on copies of `folder`: SIGKILL at its n-th operation there, for n = 0, 1, ... until a child lives.

    Prints a JSON line an attempt: {"copy": its folder, "killed_at": operation, or null}.

    Args:
        more: audit events that count as operations besides OPERATIONS.
    """
    operations = OPERATIONS.union(more)
    for number in itertools.count():
        copy = folder.with_name(f"{folder.name}-{number}")
        shutil.copytree(folder, copy)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _kill_at(number, copy, operations, writing)
            work(copy)
            os._exit(0)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        told = os.read(reading, 10_000).decode()
        os.close(reading)
        assert os.WIFSIGNALED(status) == bool(told), (status, told)
        print(json.dumps({"copy": str(copy), "killed_at": told or None}), flush=True)
        if not told:
            assert os.WEXITSTATUS(status) == 0
            return


def _kill_at(number: int, folder: Path, operations: frozenset[str], told: int) -> None:
    seen = itertools.count()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        names = " ".join(map(str, arguments[:2]))
        if event in operations and str(folder) in names and next(seen) == number:
            os.write(told, f"{event} {names}".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def attempts(module: str, *arguments: Path | str) -> list[dict[str, Any]]:
    """The attempts of `python -m module arguments...`, which calls `kill_at_every_operation`."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]
