"""Copy checkpoints to a folder behind file:// again and again, each time killed at the next file-system operation.

`python -m tests.support.kill_upload CHECKPOINTS REMOTE`: CHECKPOINTS has steps 1, 2 and 3, REMOTE a copy of step 1.
Each attempt works on a copy of REMOTE, in a forked child that copies step 2, then step 3, keeping one, and gets
SIGKILL at its n-th operation, the middle of a file among them. Prints a JSON line an attempt: {"copy": ...,
"killed_at": operation, or null}.
"""

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pretrain.checkpoint import remote
from pretrain.config.run import CheckpointConfig

_OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "shutil.move", "half"}


def _copy(checkpoints: Path, target: Path) -> None:
    used = remote.RemoteCopies(CheckpointConfig(remote=f"file://{target}", keep=1), after_step=1)
    for step in (2, 3):
        used.push(checkpoints / f"step-{step:08d}")
        assert used._running is not None
        used._running.result()
    used.close()


def _kill_at(number: int, folder: Path, told: int) -> None:
    seen = itertools.count()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        names = " ".join(map(str, arguments[:2]))
        if event in _OPERATIONS and str(folder) in names and next(seen) == number:
            os.write(told, f"{event} {names}".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def in_halves(source: Any, target: Any, length: int = 0) -> None:
        data = source.read()
        target.write(data[: len(data) // 2])
        target.flush()
        sys.audit("half", target.name)
        target.write(data[len(data) // 2 :])

    shutil.copyfileobj = in_halves
    shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]
    sys.addaudithook(hook)


def attempts(checkpoints: Path, target: Path) -> Iterator[dict[str, Any]]:
    """Until a child lives."""
    for number in itertools.count():
        copy = target.with_name(f"{target.name}-{number}")
        shutil.copytree(target, copy)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _kill_at(number, copy, writing)
            _copy(checkpoints, copy)
            os._exit(0)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        told = os.read(reading, 10_000).decode()
        os.close(reading)
        assert os.WIFSIGNALED(status) == bool(told), (status, told)
        yield {"copy": str(copy), "killed_at": told or None}
        if not told:
            assert os.WEXITSTATUS(status) == 0
            return


if __name__ == "__main__":
    for attempt in attempts(Path(sys.argv[1]), Path(sys.argv[2])):
        print(json.dumps(attempt), flush=True)
