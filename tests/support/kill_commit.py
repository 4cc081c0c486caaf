"""Commit a checkpoint again and again, each time killed at the next file-system operation; print what was left.

`python -m tests.support.kill_commit FOLDER`: FOLDER holds a committed checkpoint of step 1. Each attempt works on a
copy, in a forked child that commits step 2 and gets SIGKILL at its n-th operation, for n = 0, 1, ... until a child
lives. Prints one JSON line an attempt: {"copy": ..., "killed_at": the operation, or null}.
"""

import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from pretrain import checkpoint

_OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


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


def save(folder: Path) -> None:
    """Two files, written in turns, so that a kill leaves parts of both."""
    (folder / "deepspeed").mkdir()
    for part in range(3):
        for name in ("model.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
            with open(folder / "deepspeed" / name, "ab") as file:
                file.write(bytes([part]) * 1000)


def _kill_at(number: int, folder: Path, told: int) -> None:
    seen = itertools.count()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _OPERATIONS and str(folder) in str(arguments[0]) and next(seen) == number:
            os.write(told, f"{event} {arguments[0]}".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def main(folder: Path) -> None:
    checkpoint.dist = OneRank  # type: ignore[assignment]
    for number in itertools.count():
        copy = folder.with_name(f"{folder.name}-{number}")
        shutil.copytree(folder, copy)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _kill_at(number, copy, writing)
            checkpoint.commit(copy, 2, {"position": [0, 0, 2]}, save, keep=1)
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
    main(Path(sys.argv[1]))
