"""`maskwright watch`: the table of running runs, and how it ends."""

import json
import math
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from launchers.app import app
from launchers.watch.run_table import curve
from pretrain.run import Journal, RunFolder
from tests.support.forked import ROOT


def make_run(folder, steps):
    run = RunFolder(folder)
    run.create()
    run.write_status("completed", steps[-1], 50, "all steps are done", "none")
    write(folder, steps)


def write(folder, steps):
    journal = Journal(folder / "journal.jsonl")
    for step in steps:
        journal.append(step, {"train/loss": 5 - step / 10, "speed/tokens_per_second": 1234.0})
    journal.close()


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], ""),
        ([1.0], "▅"),
        ([2.0, 2.0], "▅▅"),
        ([0.0, 7.0], "▁█"),
        ([7.0, math.nan, 0.0], "█▁"),
        ([*range(8)], "▁▂▃▄▅▆▇█"),
    ],
)
def test_a_curve_goes_from_the_lowest_to_the_highest_mean(values, shown):
    assert curve(values) == shown


def test_a_long_curve_has_means_of_neighbours():
    assert len(curve([*range(1000)])) == 20
    assert curve([0.0, 2.0] * 20 + [5.0] * 2, width=21)[:20] == "▁" * 20


def test_without_a_terminal_the_table_is_printed_once(tmp_path, monkeypatch):
    make_run(tmp_path / "runs" / "one", range(1, 30))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["watch"])
    assert result.exit_code == 0, result.exception
    header, line = result.output.splitlines()
    assert header.split()[:2] == ["run", "state"]
    assert "runs/one" in line
    assert "█▇" in line
    assert json.loads(CliRunner().invoke(app, ["watch", "--json"]).output)[0]["loss"] == pytest.approx(2.1)


def test_in_a_terminal_it_follows_a_run_until_q(tmp_path):
    make_run(tmp_path / "run", range(1, 10))
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "launchers.cli", "watch", "run"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "160", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, cwd=tmp_path)
    try:
        seen = read_until(controller, r"4\.1000")
        assert "completed" in seen
        write(tmp_path / "run", [10, 11, 12])
        read_until(controller, r"3\.8000")
        os.write(controller, b"q")
        assert process.wait(20) == 0
    finally:
        process.kill()


def read_until(controller, pattern, seconds=60):
    seen, deadline = "", time.monotonic() + seconds
    while not re.search(pattern, seen):
        assert time.monotonic() < deadline, seen
        if select.select([controller], [], [], 0.2)[0]:
            seen += os.read(controller, 65536).decode(errors="replace")
    return seen
