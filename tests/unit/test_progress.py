"""Plain lines in a log, one live line on a terminal."""

import io

import pytest
from rich.console import Console

from pretrain.progress import Progress, _short, duration


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def run(console: Console, total: int, done: int, seconds_a_step: float) -> None:
    clock = Clock()
    progress = Progress(total, done, console, clock)
    for step in range(done + 1, total + 1):
        clock.now += seconds_a_step
        metrics = {"train/loss": 10 - step / 10, "speed/tokens_per_second": 12345.0, "speed/unknown": 1.0}
        progress.update(step, metrics)
        if step in (45, 100):
            progress.update(step, {"eval/loss": 7.5})
            progress.update(step, {"checkpoint/seconds": 1.0})
        if step == 50:
            progress.message("checkpoint [step] 50 saved")
    progress.close()


def test_plain_lines_come_at_the_first_and_last_step_at_evaluations_and_every_ten_seconds() -> None:
    out = io.StringIO()
    run(Console(file=out, soft_wrap=True), total=100, done=40, seconds_a_step=0.5)
    lines = out.getvalue().splitlines()
    assert lines[0] == "step 41/100 | loss 5.9000 | 12.3k tokens/s"
    assert lines[1] == "step 45/100 | loss 5.5000 | eval loss 7.5000 | 12.3k tokens/s | ETA 0:00:28"
    assert lines[2] == "checkpoint [step] 50 saved"
    assert lines[3] == "step 65/100 | loss 3.5000 | eval loss 7.5000 | 12.3k tokens/s | ETA 0:00:18"
    assert lines[4].startswith("step 85/100 |")
    assert lines[5] == "step 100/100 | loss 0.0000 | eval loss 7.5000 | 12.3k tokens/s"
    assert len(lines) == 6
    assert "\x1b" not in out.getvalue()


def test_a_terminal_shows_one_line_with_the_messages_above() -> None:
    out = io.StringIO()
    run(Console(file=out, force_terminal=True, width=60), total=100, done=0, seconds_a_step=0.5)
    text = out.getvalue()
    assert text.count("checkpoint [step] 50 saved") == 1
    assert "\x1b[2Kstep 100/100 | loss 0.0000" in text  # drawn over the line before
    assert text.count("step 45/100") <= 1


def test_a_single_step_and_a_resumed_finished_run_divide_by_nothing() -> None:
    out = io.StringIO()
    run(Console(file=out), total=1, done=0, seconds_a_step=0.0)
    Progress(5, 5, Console(file=out)).close()
    assert out.getvalue().splitlines() == ["step 1/1 | loss 9.9000 | 12.3k tokens/s"]


@pytest.mark.parametrize("value, text", [(0, "0"), (949.6, "950"), (999.7, "1k"), (12345, "12.3k"), (999_600, "1M")])
def test_rates_are_short(value: float, text: str) -> None:
    assert _short(value) == text


@pytest.mark.parametrize("seconds, text", [(0.4, "0:00:00"), (61, "0:01:01"), (90_061, "1d 1:01:01")])
def testdurations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
