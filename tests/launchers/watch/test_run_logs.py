"""Lines of a growing log."""

import os
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from data_prep.common.errors import UserError
from launchers.watch import find_log, log_lines
from launchers.watch.run_logs import logs_of
from pretrain.run import RunFolder


@pytest.mark.parametrize("count", [0, 1, 3, 9999, 10_000, 20_000, None])
def test_last_lines_are_those_of_the_whole_file(tmp_path, count):
    lines = [f"line {n} {'x' * (n % 90)}" for n in range(10_000)]
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    assert list(log_lines(tmp_path / "log", tmp_path, count)) == (
        lines if count is None else lines[len(lines) - min(count, 10_000) :]
    )


def test_torn_lines_wait_for_their_end(tmp_path):
    run, path = RunFolder(tmp_path), tmp_path / "log"
    run.create()
    run.write_status("running", 1, 10, "training", "none")
    lock = run.lock()
    path.write_text("one\ntw")
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(log_lines(path, tmp_path, 10, follow=True)))
    thread.start()
    time.sleep(0.6)
    with open(path, "a") as file:
        file.write("o\nthree\n")
    time.sleep(0.6)
    run.write_status("completed", 10, 10, "done", "none")
    lock.close()
    thread.join(20)
    assert found == ["one", "two", "three"]


def test_a_link_is_no_log(tmp_path: Path) -> None:
    """The run folder may come from somebody else, and link to any file."""
    (tmp_path / "run" / "slurm").mkdir(parents=True)
    (tmp_path / "id_ed25519").write_text("secret")
    (tmp_path / "run" / "slurm" / "1.log").symlink_to(tmp_path / "id_ed25519")
    assert find_log(tmp_path / "run", None) is None


def test_a_whole_log_needs_little_memory(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a line of thirty characters ..\n" * 1_000_000)
    tracemalloc.start()
    assert sum(1 for _ in log_lines(tmp_path / "log", tmp_path, None)) == 1_000_000
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_logs_that_are_pipes_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "slurm").mkdir()
    for name in ("journal.jsonl", "slurm/1.log"):
        os.mkfifo(tmp_path / name)
    assert logs_of(tmp_path) == []
    with pytest.raises(UserError, match="it is a pipe, not a regular file"):
        list(log_lines(tmp_path / "journal.jsonl", tmp_path, 5))
