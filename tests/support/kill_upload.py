"""Copy checkpoints to a file:// folder repeatedly, each time killed at the next file-system operation.

`python -m tests.support.kill_upload CHECKPOINTS REMOTE`: CHECKPOINTS has steps 1, 2 and 3, REMOTE a copy of step 1.
Each attempt copies step 2, then step 3, to a copy of REMOTE, keeping one; the middle of a file is
among the operations at which it is killed.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from pretrain.checkpoint import remote_copies
from pretrain.config import CheckpointConfig
from tests.support.kills import print_kills


def _in_halves(source: Any, target: Any, length: int = 0) -> None:
    data = source.read()
    target.write(data[: len(data) // 2])
    target.flush()
    sys.audit("half", target.name)
    target.write(data[len(data) // 2 :])


def _copy(checkpoints: Path, target: Path) -> None:
    shutil.copyfileobj = _in_halves
    shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]
    used = remote_copies.RemoteCopies(CheckpointConfig(remote=f"file://{target}", keep=1), after_step=1)
    for step in (2, 3):
        used.push(checkpoints / f"step-{step:08d}")
        used.wait()
    used.close()


if __name__ == "__main__":
    print_kills(Path(sys.argv[2]), lambda copy: _copy(Path(sys.argv[1]), copy), ("open", "shutil.move", "half"))
