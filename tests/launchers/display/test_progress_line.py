"""Progress of long commands, on a terminal and without one."""

import contextlib
import os
import pty
import subprocess
import sys

from launchers.display import CommandProgress
from launchers.display.progress import PLAIN_SECONDS
from tests.support.forked import ROOT


def test_lines_come_now_and_then_with_the_time_left(capsys):
    now = 0.0
    with CommandProgress(clock=lambda: now) as line:
        line.show(0, 4, "runs")
        now = PLAIN_SECONDS
        line.show(0, 4, "runs")  # there is no progress yet
        now += 1
        line.show(1, 4, "runs")  # too early
        now = 3600.0
        line.show(1, 4, "runs")
    assert capsys.readouterr().err.splitlines() == ["  0% runs", " 25% runs, 3:00:00 left"]


def test_the_time_left_counts_what_was_done_since_the_work_began(capsys):
    """Not what an earlier call of the command did, and not the time of work before."""
    now = 0.0
    with CommandProgress(clock=lambda: now) as line:
        line.show(60, 100, "resumed")
        now = 100.0
        line.show(80, 100, "resumed")
        line.show(0, 10, "the next training")
        now += 50
        line.show(5, 10, "the next training")
    said = capsys.readouterr().err.splitlines()
    assert said == [" 80% resumed, 0:01:40 left", " 50% the next training, 0:00:50 left"]


DRAW = """
import time

from data_prep.common.output import guard_output
from launchers.display import CommandProgress

guard_output()
with CommandProgress("loading [x]") as line:
    time.sleep(0.3)
    for done in range(5):
        line.show(done, 5, "texts \\x1b]0;title\\x07")
        line.say("a note")
"""


def test_a_terminal_gets_one_redrawn_line_and_no_characters_of_others():
    """rich's control characters reach the terminal; those of a text do not, and are not shown as escapes of rich."""
    terminal, end = pty.openpty()
    words, environment = [sys.executable, "-c", DRAW], os.environ | {"TERM": "xterm"}
    process = subprocess.Popen(words, stdout=end, stderr=end, env=environment, cwd=ROOT)
    os.close(end)
    drawn = b""
    with contextlib.suppress(OSError):  # the end of the terminal
        while part := os.read(terminal, 1 << 16):
            drawn += part
    os.close(terminal)
    assert process.wait() == 0
    assert b"\x1b[2K" in drawn, "the line is erased and drawn again"
    assert b"\\u001b[" not in drawn
    assert b"\x1b]0;" not in drawn
    assert b"loading [x]" in drawn, "what it waits for, from the start"
    assert drawn.count(b"\x1b[2Ka note\r\n") == 5, "on lines of their own"
