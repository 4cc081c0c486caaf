"""Repeat an action, each time killed at the next change of the file system; each attempt is a forked child."""

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.forked import ROOT, run_forked

CHANGES = frozenset({"os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"})
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def killed_copies(
    folder: Path, work: Callable[[Path], object], more: Iterable[str] = ()
) -> Iterator[tuple[Path, str | None]]:
    """`work` on copies of `folder`: SIGKILL at its n-th change there, for n = 0, 1, ... until a child lives.

    Yields each copy, and the operation that its child was killed at, None of the last.

    Args:
        more: audit events that count as changes besides CHANGES and an `open` to write.
    """
    events = CHANGES.union(more)
    for number in itertools.count():
        copy = folder.with_name(f"{folder.name}-{number}")
        shutil.copytree(folder, copy)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _kill_at(number, copy, events, writing)
            work(copy)
            os._exit(0)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        told = os.read(reading, 10_000).decode()
        os.close(reading)
        assert os.WIFSIGNALED(status) == bool(told), (status, told)
        assert told or os.WEXITSTATUS(status) == 0
        yield copy, told or None
        if not told:
            return


def print_kills(folder: Path, work: Callable[[Path], object], more: Iterable[str] = ()) -> None:
    """As `killed_copies`; prints a JSON line an attempt: {"copy": its folder, "killed_at": operation, or null}."""
    for copy, killed_at in killed_copies(folder, work, more):
        print(json.dumps({"copy": str(copy), "killed_at": killed_at}), flush=True)


def _kill_at(number: int, folder: Path, events: frozenset[str], told: int) -> None:
    seen = itertools.count()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in events or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES)
        names = " ".join(map(str, arguments[:2]))
        if changes and str(folder) in names and next(seen) == number:
            os.write(told, f"{event} {names}".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def attempts(module: str, *arguments: Path | str) -> list[dict[str, Any]]:
    """The attempts of `python -m module arguments...`, which calls `print_kills`."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = run_forked([module, *map(str, arguments)], environment, ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
