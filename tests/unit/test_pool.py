"""Workers that stop: in time, quietly, and leaving nothing."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
    import sys, time
    from pathlib import Path
    from data_prep import pool
    def work(bench, task, report):
        Path(sys.argv[1], f"{task}.begun").touch()
        time.sleep(float(sys.argv[2]))
    def bench(out):
        return None
    pool._bench = bench
    if __name__ == "__main__":
        Path(sys.argv[1], "prep").mkdir()
        Path(sys.argv[1], "prep/plan.json").touch()
        print("started", flush=True)
        with pool.Workers(2) as workers:
            workers.run(work, range(10), Path(sys.argv[1]), lambda progress: None)
"""


def start(folder: Path, seconds: float) -> subprocess.Popen:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder), str(seconds)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


@pytest.mark.parametrize("interrupts, least, most", [(1, 4, 9), (2, 0, 3)])
def test_tasks_that_do_not_stop_are_killed_in_time(tmp_path, interrupts, least, most):
    process = start(tmp_path, 600)
    while len(list(tmp_path.glob("*.begun"))) != 2:
        assert process.poll() is None
        time.sleep(0.01)
    children = psutil.Process(process.pid).children()
    begin = time.monotonic()
    for _ in range(interrupts):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.5)
    _, errors = process.communicate(timeout=20)
    assert least < time.monotonic() - begin < most
    assert process.returncode != 0
    assert errors.count("Traceback") == 1, errors  # that of the parent
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive


@pytest.mark.parametrize("wait", [0.02, 0.1, 0.2])
def test_workers_that_are_just_starting_say_nothing(tmp_path, wait):
    process = start(tmp_path, 0.1)
    time.sleep(wait)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode != 0
    assert errors.count("Traceback") <= 1, errors
    assert "spawn" not in errors
