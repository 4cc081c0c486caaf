"""Temporary files and locks of living and dead processes."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from data_prep.common.files import LockHeldError, file_lock, is_abandoned


def left_by(pid: int, folder: Path) -> Path:
    path = folder / f".00000-00000.tar.{socket.gethostname()}.{pid}.tmp"
    path.touch()
    return path


def test_a_file_is_abandoned_when_its_process_is_gone_or_a_zombie(tmp_path):
    """A killed orphan stays a zombie where no init process waits for it, as in many containers."""
    assert not is_abandoned(left_by(os.getpid(), tmp_path))
    process = subprocess.Popen([sys.executable, "-c", ""])
    path = left_by(process.pid, tmp_path)
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert is_abandoned(path)
    process.wait()
    assert is_abandoned(path)


def test_a_file_of_another_host_is_abandoned_when_it_is_old(tmp_path):
    path = tmp_path / f".00000-00000.tar.elsewhere.{os.getpid()}.tmp"
    path.touch()
    assert not is_abandoned(path)
    os.utime(path, (0, 0))
    assert is_abandoned(path)
    path.unlink()
    assert not is_abandoned(path)


HOLD = """
import sys, time
from pathlib import Path
from data_prep.common.files import file_lock
with file_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lock_ends_with_its_process(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockHeldError), file_lock(tmp_path / "lock", wait=False):
            pass
        holder.kill()
    with file_lock(tmp_path / "lock", wait=False) as locked:
        assert locked


def test_a_lock_that_cannot_be_made(tmp_path):
    with pytest.raises(FileNotFoundError), file_lock(tmp_path / "missing" / "lock"):
        pass
    with file_lock(tmp_path / "missing" / "lock", needed=False) as locked:
        assert not locked
    assert not (tmp_path / "missing").exists()
