"""Progress display of a training run: a live line on a terminal, or a plain line every ten seconds in a log file."""

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.text import Text

LINE_SECONDS_VARIABLE = "MASKWRIGHT_LINE_SECONDS"
"""Seconds between two plain lines, for a notebook, which shows the last one only."""
_SECONDS_BETWEEN_PLAIN_LINES = 10.0
_SHOWN: dict[str, Callable[[float], str]] = {
    "train/loss": lambda value: f"loss {value:.4f}",
    "train/masked_accuracy": lambda value: f"masked accuracy {value:.1%}",
    "eval/loss": lambda value: f"eval loss {value:.4f}",
    "eval/ema_loss": lambda value: f"eval loss of averaged weights {value:.4f}",
    "eval/masked_accuracy": lambda value: f"eval masked accuracy {value:.1%}",
    "speed/tokens_per_second": lambda value: f"{value:,.0f} tokens/s",
    "speed/mfu": lambda value: f"MFU {value:.1%}",
    "train/learning_rate": lambda value: f"lr {value:.2e}",
    "train/grad_norm": lambda value: f"grad norm {value:.2f}",
}  # in the order of a line; a narrow terminal cuts its end
_OF_OBJECTIVES = {"train/loss/": "", "eval/loss/": "eval "}  # and then

_LONGEST_ETA = 1e13  # seconds; timedelta holds little more, and train.steps may be any number


class ProgressLine:
    """Progress display of a training run that starts after `steps_done` steps (0 for a new run)."""

    def __init__(
        self,
        total_steps: int,
        steps_done: int,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        phase_at: Callable[[int], str] = lambda step: "",
    ) -> None:
        """`console` is standard error by default. `clock` is monotonic, in seconds. `phase_at`: its name at a step."""
        self._phase_at = phase_at
        self._total, self._first, self._clock = total_steps, steps_done + 1, clock
        # A log file gets no control characters, even if FORCE_COLOR is set.
        self._console = console or Console(file=sys.stderr, soft_wrap=True, force_terminal=sys.stderr.isatty())
        self._between = float(os.environ.get(LINE_SECONDS_VARIABLE, _SECONDS_BETWEEN_PLAIN_LINES))
        self._started = clock()
        self._printed, self._printed_at = 0, 0.0  # the last step with a plain line, and when
        self._shown: dict[str, float] = {}
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()

    def update(self, step: int, metrics: dict[str, float]) -> None:
        """Show that `step` is done. A training metric that is not given keeps its last value.

        Evaluation calls it a second time for the same step. Its results are printed immediately on a separate line,
        and only once.
        """
        new = {name: metrics[name] for name in metrics if name in _SHOWN or name.startswith((*_OF_OBJECTIVES,))}
        evaluation = {name: value for name, value in new.items() if name.startswith("eval/")}
        self._shown.update({name: value for name, value in new.items() if name not in evaluation})
        if self._live:
            self._live.update(Text(self._line(step, self._shown), no_wrap=True, overflow="ellipsis"))
            if evaluation:
                self.message(self._line(step, evaluation))
        elif evaluation:
            self._print(step, evaluation if step == self._printed else self._shown | evaluation)
        elif self._is_due(step):
            self._print(step, self._shown)

    def message(self, text: str) -> None:
        """Print a separate line, on a terminal above the live line."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        if self._live:
            self._live.stop()

    def _is_due(self, step: int) -> bool:
        waited = self._clock() - self._printed_at >= self._between
        return step != self._printed and (waited or step in (self._first, self._total))

    def _print(self, step: int, metrics: dict[str, float]) -> None:
        self._printed, self._printed_at = step, self._clock()
        self.message(self._line(step, metrics))

    def _line(self, step: int, metrics: dict[str, float]) -> str:
        phase = [f"phase {name}"] if (name := self._phase_at(step)) else []
        return " | ".join([f"step {step:,}/{self._total:,}", *phase, *self._remaining(step), *_metric_texts(metrics)])

    def _remaining(self, step: int) -> list[str]:
        """The estimated time left. The first step does not count, as it compiles kernels and fills caches."""
        if step <= self._first:
            self._started = self._clock()
        done, left = step - self._first, self._total - step
        if done <= 0 or left <= 0:
            return []
        seconds = (self._clock() - self._started) / done * left
        return [f"ETA {timedelta(seconds=round(min(seconds, _LONGEST_ETA)))}"]


def _metric_texts(metrics: dict[str, float]) -> list[str]:
    """The metrics of the progress line, as text."""
    of_all = [form(metrics[name]) for name, form in _SHOWN.items() if name in metrics]
    return of_all + [
        f"{stage}{name.removeprefix(start)} loss {value:.4f}"
        for start, stage in _OF_OBJECTIVES.items()
        for name, value in metrics.items()
        if name.startswith(start)
    ]
