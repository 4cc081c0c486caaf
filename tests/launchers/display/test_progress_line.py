"""What long commands say where there is no terminal."""

import pytest

from launchers.display import progress


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_lines_come_now_and_then_with_the_time_left(clock, capsys):
    with progress.CommandProgress() as line:
        line.show(0, 4, "runs")
        clock[0] = progress.PLAIN_SECONDS
        line.show(0, 4, "runs")  # of which nothing is known yet
        clock[0] += 1
        line.show(1, 4, "runs")  # too early
        clock[0] = 3600.0
        line.show(1, 4, "runs")
    assert capsys.readouterr().err.splitlines() == ["  0% runs", " 25% runs, 3:00:00 left"]
