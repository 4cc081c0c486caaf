"""Stop of worker processes: in time, without output, and without remaining processes."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import psutil
import pytest

from data_prep.jobs import PreparationSettings, TaskProgress, Workers, plan_only, prepare
from tests.support.prep import jsonl, request, texts
from tests.support.runs import environment

SCRIPT = """
    import sys, time
    from pathlib import Path
    from data_prep.jobs import Workers, process_pool
    def work(context, task, report):
        Path(sys.argv[1], f"{task}.begun").touch()
        time.sleep(float(sys.argv[2]))
    if __name__ == "__main__":
        process_pool._STOP_SECONDS = float(sys.argv[3])
        print("started", flush=True)
        with Workers(2) as workers:
            workers.run(work, range(10), Path(sys.argv[1], "out"), lambda progress: None)
"""


@pytest.fixture
def start(tmp_path, tokenizer) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts the script with tasks of so many seconds, which are killed so many seconds after an interrupt."""
    with contextlib.ExitStack() as stack:

        def start(seconds: float, stop_seconds: float = 5) -> subprocess.Popen:
            (tmp_path / "a.jsonl").write_bytes(jsonl(texts(0, 50)))
            plan_only(request([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out"))
            (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
            words = [sys.executable, tmp_path / "script.py", tmp_path, str(seconds), str(stop_seconds)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            process = subprocess.Popen(words, env=environment(), start_new_session=True, **pipes)
            stack.callback(process.kill)
            assert process.stdout.readline() == "started\n"
            return process

        yield start


@pytest.mark.parametrize("interrupts, stop_seconds", [(1, 1.5), (2, 60)])
def test_tasks_that_do_not_stop_are_killed_in_time_or_at_once(start, tmp_path, interrupts, stop_seconds):
    """In time after one Ctrl-C, and at once after two."""
    process = start(600, stop_seconds)
    while len(list(tmp_path.glob("*.begun"))) != 2:
        assert process.poll() is None
        time.sleep(0.01)
    children = psutil.Process(process.pid).children()
    begin = time.monotonic()
    for _ in range(interrupts):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.5)
    _, errors = process.communicate(timeout=20)
    assert interrupts == 2 or time.monotonic() - begin > stop_seconds
    assert process.returncode != 0
    assert errors.count("Traceback") == 1, errors  # of the parent
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive


def test_workers_that_are_just_starting_do_not_hear_ctrl_c(start):
    process = start(0.01)
    heard: set[int] = set()
    while process.poll() is None and len(heard) < 2:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(process.pid).children():
                if child.pid not in heard and "spawn_main" in " ".join(child.cmdline()):
                    child.send_signal(signal.SIGINT)
                    heard.add(child.pid)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    assert len(heard) == 2


def test_the_thread_of_a_pool_that_failed_is_waited_for():
    """Python's exit would write to the pipe that it closes."""

    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if "Executor" in type(thread).__name__]

    def fail() -> None:
        assert threads()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Workers(2):
        fail()
    assert not threads()


def test_totals_never_go_back(tmp_path, tokenizer):
    """Of scans, whose last report has fewer figures, and of all stages with one task after the other."""
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl(texts(ord(name), 50)))
    asked = request([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tokenizer, tmp_path / "out")
    shown: dict[str, list[TaskProgress]] = {}
    asked = replace(asked, settings=PreparationSettings(deduplicate="exact"))
    prepare(asked, Workers(1), lambda stage, totals, _: shown.setdefault(stage, []).append(totals))
    assert shown["scan"][-1].documents == 100
    for stage, totals in shown.items():
        for earlier, later in itertools.pairwise(totals):
            assert all(then <= now for then, now in zip(earlier, later, strict=True)), (stage, earlier, later)
