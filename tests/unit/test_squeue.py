"""What squeue prints, as jobs and their runs; and the lines of a log that grows."""

import os
import stat
import threading
import time
from pathlib import Path

import pytest

from data_prep.errors import UserError
from launchers import squeue
from launchers.run_logs import follow, last_lines, logs_of
from pretrain.run_folder import RunFolder


def line(**fields: str) -> str:
    values = dict.fromkeys(squeue._FIELDS, "x") | {"task": "N/A", "comment": "(null)", "script": "/bin/sh"} | fields
    return squeue._SEPARATOR.join(values.values())


def test_runs_are_found_by_comment_and_by_script(tmp_path):
    named = squeue.parse(line(id="12", comment="maskwright:/runs/a | b", state="RUNNING"))
    assert (named.id, named.run, named.waits) == ("12", Path("/runs/a | b"), False)
    seed = squeue.parse(line(id="13_4", task="4", comment="maskwright:/runs/s/seed-%a", state="PENDING"))
    assert (seed.run, seed.waits) == (Path("/runs/s/seed-4"), True)
    assert squeue.parse(line(script="/runs/c/slurm/job.sh")).run == Path("/runs/c")
    (tmp_path / "prep.sh").write_text("#!/bin/sh\n# A job array, written by `maskwright launch prep`: ...\n")
    ours = squeue.parse(line(script=str(tmp_path / "prep.sh")))
    assert ours is not None
    assert ours.run is None


@pytest.mark.parametrize(
    "text", ["", "slurm_load_jobs error", line(), line(script="/nowhere/else.sh"), line() + "\x1f"]
)
def test_other_jobs_are_left_out(text):
    assert squeue.parse(text) is None


def fake_squeue(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "squeue").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "squeue").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_a_controller_that_is_down_or_silent(tmp_path, monkeypatch):
    fake_squeue(tmp_path, "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", monkeypatch)
    assert squeue.own_jobs() == ([], "slurm_load_jobs error: Unable to contact slurm controller")
    monkeypatch.setattr(squeue, "_SECONDS", 0.2)
    fake_squeue(tmp_path, "exec sleep 5", monkeypatch)
    assert "does not answer" in squeue.own_jobs()[1]
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert squeue.own_jobs() == ([], "there is no squeue here")


def test_jobs_come_in_order(tmp_path, monkeypatch):
    rows = "\\n".join(
        line(id=name, comment=f"maskwright:/{name}").replace("\x1f", "\\037") for name in ("10_2", "9", "10_1")
    )
    fake_squeue(tmp_path, f"printf '{rows}\\n'", monkeypatch)
    assert [job.id for job in squeue.own_jobs()[0]] == ["9", "10_1", "10_2"]


@pytest.mark.parametrize("count", [0, 1, 3, 9999, 10_000, 20_000, None])
def test_last_lines_are_those_of_the_whole_file(tmp_path, count):
    lines = [f"line {n} {'x' * (n % 90)}" for n in range(10_000)]
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    assert last_lines(tmp_path / "log", count) == (lines if count is None else lines[len(lines) - min(count, 10_000) :])


def test_torn_lines_wait_for_their_end(tmp_path):
    run, path = RunFolder(tmp_path), tmp_path / "log"
    run.create()
    run.write_status("running", 1, 10, "training", "none")
    lock = run.lock()
    path.write_text("one\ntw")
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(follow(path, tmp_path, 10)))
    thread.start()
    time.sleep(0.6)
    with open(path, "a") as file:
        file.write("o\nthree\n")
    time.sleep(0.6)
    run.write_status("completed", 10, 10, "done", "none")
    lock.close()
    thread.join(20)
    assert found == ["one", "two", "three"]


def test_logs_that_are_pipes_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "slurm").mkdir()
    for name in ("journal.jsonl", "slurm/job.sh"):
        os.mkfifo(tmp_path / name)
    assert logs_of(tmp_path) == []
    with pytest.raises(UserError, match="it is a pipe, not a regular file"):
        last_lines(tmp_path / "journal.jsonl", 5)
