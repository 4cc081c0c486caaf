"""Progress display of long commands."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from data_prep.common.errors import without_controls
from pretrain.reporting import LINE_SECONDS_VARIABLE

PLAIN_SECONDS = 10  # seconds between lines if stderr is not a terminal


@contextmanager
def interruptible(resumes: bool) -> Iterator[None]:
    """Say after Ctrl-C that the command stopped and, if it `resumes`, how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        print("stopped; run the same command to resume" if resumes else "stopped", file=sys.stderr)
        raise


class CommandProgress:
    """Progress on stderr: one redrawn line on a terminal, otherwise a plain line from time to time.

    Args:
        waiting: what the command does until the first call of `show`.
        clock: time in seconds.
    """

    def __init__(self, waiting: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        console = Console(stderr=True)
        columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn(compact=True))
        shown = console.is_terminal and sys.stdout.isatty()
        # Redirected streams would hide the guarded ones from rich, and it would draw through them, as escapes.
        self._bar = Progress(
            *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False, disable=not shown
        )
        self._task = self._bar.add_task(escape(without_controls(waiting)), total=None)
        self._stage = ""
        self._begin = self._printed = self._first_time = clock()
        self._done, self._first_done = math.inf, 0  # any first call is less

    def __enter__(self) -> "CommandProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str, err: bool = False) -> None:
        """Print a line on stdout, or on stderr, on a terminal above the progress."""
        self._bar.stop()
        print(text, file=sys.stderr if err else sys.stdout, flush=True)
        self._bar.start()

    def seconds(self, stage: str) -> float:
        """Seconds since the first call for this stage."""
        if stage != self._stage:
            self._stage, self._begin = stage, self._clock()
        return max(self._clock() - self._begin, 1e-9)

    def rate(self, unit: str) -> Callable[[int, int], None]:
        """Return a function of (done, total) that shows the speed in million units per second."""
        return lambda done, total: self.show(done, total, f"{done / 1e6 / self.seconds(unit):,.0f} million {unit}/s")

    def show(self, done: int, total: int, line: str) -> None:
        """Show how much is done. The time left follows from the progress since the first call for this work.

        A call with less than the last one begins other work, such as the next training.
        """
        if done < self._done:
            self._first_time, self._first_done = self._clock(), done
        self._done = done
        if not self._bar.disable:
            text = f"{done / max(total, 1):4.0%} {without_controls(line)}"
            self._bar.update(self._task, completed=done, total=total, description=escape(text))
        elif self._clock() - self._printed >= float(os.environ.get(LINE_SECONDS_VARIABLE, PLAIN_SECONDS)):
            self._printed = self._clock()
            seconds, since = self._clock() - self._first_time, done - self._first_done
            left = f", {timedelta(seconds=round(seconds * (total - done) / since))} left" if since else ""
            typer.echo(f"{done / max(total, 1):4.0%} {line}{left}", err=True)
