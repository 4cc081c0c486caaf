"""Commit a checkpoint repeatedly, each time killed at the next file-system operation; print the remaining files.

`python -m tests.support.kill_commit FOLDER asynchronous|synchronous`: FOLDER holds a committed checkpoint of step 1.
Each attempt commits step 2. Among the operations at which it is killed are the copy of the state and, asynchronously, a
step of training between the last write and the commit.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

from pretrain.checkpoint import Parts, saver
from tests.support import checkpoints
from tests.support.kills import print_kills
from tests.support.runs import wait_for


def _snapshot(folder: Path, copy: bool) -> Parts:
    sys.audit("copy", folder)
    return checkpoints.snapshot(folder, copy)


def _commit(folder: Path, asynchronous: bool) -> None:
    used = checkpoints.saver(folder, _snapshot, keep=1, asynchronous=asynchronous)
    used.begin(2, {"position": [0, 0, 2]})
    if asynchronous:
        wait_for(lambda: used.poll()[0], 30)
        sys.audit("step", f"{folder} when it is written")
    used.finish()
    used.close()


if __name__ == "__main__":
    # Without the threads of a process group, which a fork would lose.
    saver.dist = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: 1, barrier=lambda: None)  # type: ignore[assignment]
    saver.all_gather_json = lambda value: [value]
    asynchronous = sys.argv[2] == "asynchronous"
    print_kills(Path(sys.argv[1]), lambda copy: _commit(copy, asynchronous), ("open", "copy", "step"))
