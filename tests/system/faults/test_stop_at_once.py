"""Stops before the first step end the command at once."""

import signal
import time
from pathlib import Path

import pytest

from pretrain.run import RunFolder
from tests.support import runs

QUICK_SECONDS = 6.0
"""How long the command may take to end, also on a busy machine, where imports alone take longer."""


def test_ctrl_c_while_the_ranks_import_ends_the_command_at_once(data, tmp_path):
    """In real processes. test_resume.py stops forked ones at other moments."""
    run = tmp_path / "run"
    config = runs.config_file(data, run)
    command = runs.start_maskwright(tmp_path / "log", "train", config, "--procs", "2", real=True)
    runs.wait_for(lambda: (run / "status.json").exists())
    time.sleep(0.5)
    assert runs.status(run)["state"] == "starting"
    asked = time.monotonic()
    command.send_signal(signal.SIGINT)
    code, log = command.wait(timeout=60), (tmp_path / "log").read_text()
    assert time.monotonic() - asked < QUICK_SECONDS
    assert code == 75, log
    assert not runs.ranks_of(config)
    assert "stopped after step 0 of 24: ended by Ctrl-C before training began; run the same command again" in log
    assert runs.status(run)["state"] == "stopped"
    assert not RunFolder(run).is_held()


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(fields["SigCgt"], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_there_are_processes_ends_the_command_with_a_message(data, tmp_path, number):
    config = runs.config_file(data, tmp_path / "run")
    command = runs.start_maskwright(tmp_path / "log", "train", config, "--procs", "2", real=True)
    runs.wait_for(lambda: catches(command.pid, signal.SIGTERM))
    asked = time.monotonic()
    command.send_signal(number)
    code, log = command.wait(timeout=60), (tmp_path / "log").read_text()
    assert time.monotonic() - asked < QUICK_SECONDS
    assert code == 75, log
    assert "before training began" in log
    assert "Traceback" not in log
    assert not runs.ranks_of(config)
