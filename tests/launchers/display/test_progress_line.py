"""Progress of long commands without a terminal."""

from launchers.display import CommandProgress
from launchers.display.progress import PLAIN_SECONDS


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
