"""Commit a checkpoint again and again, each time killed at the next file-system operation; print what was left.

`python -m tests.support.kill_commit FOLDER asynchronous|synchronous`: FOLDER holds a committed checkpoint of step 1.
Each attempt works on a copy, in a forked child that commits step 2 and gets SIGKILL at its n-th operation, for n = 0,
1, ... until a child lives. Among the operations are the copy of the state and, asynchronously, a step of training
between the last write and the commit. Prints a JSON line an attempt: {"copy": ..., "killed_at": operation, or null}.
"""

import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from pretrain.checkpoint import saver
from pretrain.checkpoint.write import Parts
from tests.support import checkpoints

_OPERATIONS = {"copy", "step", "open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


class OneRank:
    """torch.distributed for a single process, without threads that a fork would lose."""

    @staticmethod
    def get_rank() -> int:
        return 0

    @staticmethod
    def get_world_size() -> int:
        return 1

    @staticmethod
    def barrier() -> None:
        pass

    @staticmethod
    def all_gather_object(found: list[Any], value: Any) -> None:
        found[0] = value

    @staticmethod
    def broadcast_object_list(values: list[Any]) -> None:
        pass


def _snapshot(folder: Path, copy: bool) -> Parts:
    sys.audit("copy", folder)
    return checkpoints.snapshot(folder, copy)


def _commit(folder: Path, asynchronous: bool) -> None:
    used = checkpoints.saver(folder, _snapshot, keep=1, asynchronous=asynchronous)
    used.begin(2, {"position": [0, 0, 2]})
    if asynchronous:
        checkpoints.steps_until_written(used)
        sys.audit("step", f"{folder} when it is written")
    used.finish()
    used.close()


def _kill_at(number: int, folder: Path, told: int) -> None:
    seen = itertools.count()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _OPERATIONS and str(folder) in str(arguments[0]) and next(seen) == number:
            os.write(told, f"{event} {arguments[0]}".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def main(folder: Path, asynchronous: bool) -> None:
    saver.dist = OneRank  # type: ignore[assignment]
    for number in itertools.count():
        copy = folder.with_name(f"{folder.name}-{number}")
        shutil.copytree(folder, copy)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _kill_at(number, copy, writing)
            _commit(copy, asynchronous)
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "asynchronous")
