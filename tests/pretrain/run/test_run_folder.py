"""The lock and the status of a run folder."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from data_prep.common.errors import UserError
from pretrain.run import EXIT_CODES, RunFolder
from tests.support.forked import ROOT

HOLD = """
import sys, time
from pathlib import Path
from pretrain.run import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.create()
lock = folder.lock()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds tmp_path / "run"."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    environment = os.environ | {"SLURM_JOB_ID": "4711"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_reader_that_looks_at_the_lock_does_not_refuse_a_start(tmp_path):
    """`is_held` holds the lock for a moment; here for half a second."""
    folder = RunFolder(tmp_path)
    folder.lock().close()
    with open(tmp_path / ".lock") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        threading.Timer(0.5, fcntl.flock, (reader, fcntl.LOCK_UN)).start()
        folder.lock().close()


def test_a_held_folder_is_refused_naming_the_holder(tmp_path, holder):
    folder = RunFolder(tmp_path / "run")
    for _ in range(2):
        with pytest.raises(UserError, match=rf"process {holder.pid} on .*, Slurm job 4711 is training in this run"):
            folder.lock()
    assert folder.is_held()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert f"process {holder.pid} on" in folder.holder(), "it is stale"
    assert not folder.is_held()
    with folder.lock():
        assert f"process {os.getpid()} on " in (tmp_path / "run" / ".lock").read_text()
        assert str(holder.pid) not in (tmp_path / "run" / ".lock").read_text()
        with pytest.raises(UserError, match=f"process {os.getpid()} on"):
            folder.lock()
    folder.lock().close()


def test_status_round_trip(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_status("stopped", 12, 40, "asked – by Zoë", "run it again")
    status = folder.read_status()
    assert (status.state, status.step, status.total_steps) == ("stopped", 12, 40)
    assert (status.reason, status.next_action) == ("asked – by Zoë", "run it again")
    assert EXIT_CODES[status.state] == 75
    folder.write_status("completed", 40, 40, "done", "export")
    assert folder.read_status().state == "completed"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["status.json"]


def test_progress_does_not_hide_a_failure_nor_a_failure_the_end(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_status("running", 0, 40, "starting", "none")
    folder.progress(5, 40, "training", "none")
    assert folder.fail("rank 1 hangs", "look there")
    folder.progress(6, 40, "training", "none")
    assert not folder.fail("rank 0 has lost rank 1", "look there")
    status = folder.read_status()
    assert (status.state, status.step, status.reason) == ("failed", 5, "rank 1 hangs")
    folder.write_status("completed", 40, 40, "all steps are done", "export the model")
    assert not folder.fail("rank 1 has left", "none")
    assert folder.read_status().state == "completed"


def test_not_a_run_folder(tmp_path):
    with pytest.raises(UserError, match="none does not exist"):
        RunFolder(tmp_path / "none").read_status()
    with pytest.raises(UserError, match="not a run folder"):
        RunFolder(tmp_path).read_status()


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"state": "running"}), '{"state": 1, "other": 2}'])
def test_an_unreadable_status_is_named_and_written_anew(tmp_path, content):
    folder = RunFolder(tmp_path)
    folder.status.write_text(content)
    with pytest.raises(UserError, match=r"status\.json cannot be used"):
        folder.read_status()
    folder.progress(5, 40, "training", "none")
    assert folder.recorded_status().step == 5


def test_a_run_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        RunFolder(tmp_path / "file" / "run").create()
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        RunFolder(tmp_path / "run").create()
