"""Signal handlers that interrupt a print: the request to stop is written, and nothing fails."""

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import IO

import pytest

from tests.support.forked import ROOT
from tests.support.runs import wait_for

PRINT = """
import contextlib, sys
from pathlib import Path
from launchers.local import StopSignals, end_on_stop_signals, on_stop_signals
from launchers.slurm.supervisor import Supervisor
from pretrain.config import Config
from pretrain.run import RunFolder

folder = RunFolder(Path(sys.argv[1]))
folder.create()
folder.write_status("running", 1, 9, "training", "none")
with contextlib.ExitStack() as stack:
    if sys.argv[2] == "training":
        stack.enter_context(on_stop_signals(StopSignals(folder, None)))
    elif sys.argv[2] == "before training":
        end_on_stop_signals()
    else:
        config = {"data": {"train": "data"}, "train": {"steps": 5}, "run": {"dir": folder.path}}
        Supervisor(Config.model_validate(config), 7, ["n1"])
    print("x" * 2_000_000, file=sys.stdout if sys.argv[2] == "job" else sys.stderr, flush=True)
"""


@pytest.mark.parametrize(
    "where, code, said", [("training", 0, "Stopping"), ("before training", 75, "Ended by"), ("job", 0, "received")]
)
def test_a_signal_during_a_print_fails_nothing(tmp_path: Path, where: str, code: int, said: str) -> None:
    """The print hangs when the signal comes, as nobody reads the pipe yet."""
    command = [sys.executable, "-c", PRINT, str(tmp_path), where]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    pipe = process.stdout if where == "job" else process.stderr
    assert pipe
    wait_for(lambda: _waiting(pipe) == 1 << 16)
    os.kill(process.pid, signal.SIGTERM)
    if where != "before training":
        wait_for(lambda: (tmp_path / "STOP").exists(), 20)
    output = b"".join(process.communicate(timeout=60)).decode()
    assert (process.returncode, said in output, "Traceback" in output) == (code, True, False), output[-500:]


def _waiting(pipe: IO[bytes]) -> int:
    """The bytes in a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])
