"""benchmarks/scaling.py at its smallest size, and what it leaves behind after an interrupt."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.throttled_links import obstacle
from tests.support.forked import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _with_namespaces():
    if reason := obstacle():
        pytest.skip(reason)


def start(*options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.scaling", "--quick", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def namespaces(pid: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith(f"mw{pid}")]


def test_two_ranks_behind_limited_links(tmp_path):
    """The difference is not judged: other work on the machine falsifies the times."""
    running = start("--procs", "1", "2", "--out", str(tmp_path / "page.md"))
    said, _ = running.communicate(timeout=300)
    assert running.returncode == 0, said
    rows = re.findall(r"^\| ([12]) \|(.*)\|$", (tmp_path / "page.md").read_text(), re.MULTILINE)
    assert [ranks for ranks, _ in rows] == ["1", "2", "2"]  # the last are constants
    cells = [cell.strip() for cell in rows[1][1].split("|")]
    limit, link = float(cells[0]), float(cells[1])
    assert 0.9 * limit / 8 < link < 1.05 * limit / 8  # MB/s under a limit in Mbit/s
    predicted, measured = float(cells[8]), float(cells[9].split()[0])
    assert measured > 0.1  # 1.1 MB twice, at 10 MB/s
    assert 0.3 < predicted / measured < 3
    assert namespaces(running.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_removes_the_namespaces(tmp_path, number):
    running = start("--procs", "2", "--out", str(tmp_path / "page.md"))
    end = time.monotonic() + 120
    while len(namespaces(running.pid)) < 3:
        assert running.poll() is None
        assert time.monotonic() < end
        time.sleep(0.2)
    time.sleep(2)
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode != 0
    assert namespaces(running.pid) == []
    assert not (tmp_path / "page.md").exists()
