"""Progress line: plain lines in a log, one live line on a terminal."""

import io
import re
import sys

import pytest
from rich.console import Console

from pretrain.reporting.progress_line import ProgressLine


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def run(console: Console, total: int, done: int, seconds_a_step: float) -> None:
    clock = Clock()
    progress = ProgressLine(total, done, console, clock)
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
    assert lines[0] == "step 41/100 | loss 5.9000 | 12,345 tokens/s"
    assert lines[1] == "step 45/100 | ETA 0:00:28 | loss 5.5000 | eval loss 7.5000 | 12,345 tokens/s"
    assert lines[2] == "checkpoint [step] 50 saved"
    assert lines[3] == "step 65/100 | ETA 0:00:18 | loss 3.5000 | 12,345 tokens/s"
    assert lines[4].startswith("step 85/100 |")
    assert lines[5] == "step 100/100 | loss 0.0000 | 12,345 tokens/s"
    assert lines[6] == "step 100/100 | eval loss 7.5000"
    assert len(lines) == 7
    assert "\x1b" not in out.getvalue()


def test_a_terminal_shows_one_line_with_the_messages_above() -> None:
    out = io.StringIO()
    run(Console(file=out, force_terminal=True, width=60), total=100, done=0, seconds_a_step=0.5)
    text = out.getvalue()
    assert text.count("checkpoint [step] 50 saved") == 1
    assert "\x1b[2Kstep 100/100 | loss 0.0000" in text  # drawn over the line before
    assert text.count("eval loss") == 2  # each evaluation once, above the live line
    assert text.count("step 100/100 | eval loss 7.5000") == 1


METRICS = {"train/loss": 2.0, "train/masked_accuracy": 0.5, "train/learning_rate": 1e-3, "train/grad_norm": 1.0}
METRICS |= {"speed/tokens_per_second": 12345.0, "speed/mfu": 0.412}


def lines_on_a_terminal(width: int) -> list[str]:
    """The text of the live line, each time it was drawn."""
    out, clock = io.StringIO(), Clock()
    progress = ProgressLine(100, 0, Console(file=out, force_terminal=True, width=width), clock)
    for step in (1, 2):
        clock.now += 0.5
        progress.update(step, METRICS)
    progress.close()
    return [line for line in re.split(r"[\r\n]|\x1b\[[?\d]*[a-zA-Z]", out.getvalue()) if line]


def test_a_narrow_terminal_cuts_the_end_and_never_makes_a_second_line():
    wide = lines_on_a_terminal(200)[-1]
    assert wide == (
        "step 2/100 | ETA 0:00:49 | loss 2.0000 | masked accuracy 50.0% | 12,345 tokens/s | MFU 41.2% | lr 1.00e-03 | "
        "grad norm 1.00"
    )
    for width in (20, 45, 80):
        assert lines_on_a_terminal(width)[-1] == f"{wide[: width - 1]}…"


@pytest.mark.parametrize(("variable", "value"), [("FORCE_COLOR", "1"), ("TTY_COMPATIBLE", "1"), ("TERM", "dumb")])
def test_a_log_file_has_no_control_characters(monkeypatch, variable, value):
    out = io.StringIO()
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "stderr", out)
    progress = ProgressLine(2, 0)
    progress.update(1, METRICS)
    progress.message("warning: [bold]of rank 1")
    progress.update(2, METRICS)
    progress.close()
    assert len(out.getvalue().splitlines()) == 3
    assert all(character.isprintable() or character == "\n" for character in out.getvalue())


def test_steps_without_a_time_left_and_with_any() -> None:
    out, clock = io.StringIO(), Clock()
    run(Console(file=out), total=1, done=0, seconds_a_step=0.0)
    ProgressLine(5, 5, Console(file=out)).close()
    assert out.getvalue().splitlines() == ["step 1/1 | loss 9.9000 | 12,345 tokens/s"]
    progress = ProgressLine(10**15, 0, Console(file=out, soft_wrap=True), clock)
    for step in (1, 2, 3):
        clock.now += 20
        progress.update(step, {"train/loss": 1.0})
    assert "ETA 115740740 days" in out.getvalue()
