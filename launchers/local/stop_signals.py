"""Signals to a command that waits for training processes: the first asks the run to stop, a second Ctrl-C ends it."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from data_prep.errors import UserError
from data_prep.processes import leave
from pretrain.run import EXIT_CODES, RunFolder

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StopSignals:
    """Reaction to signals while a run's processes train.

    Before the first step there is nothing to save, so any signal ends the run. Later the first signal asks
    for a checkpoint, Ctrl-C after that kills the run, and other signals change nothing.

    Args:
        folder: of the run.
        before: when its status was last written (RunFolder.status_time) before the run was started.
    """

    def __init__(self, folder: RunFolder, before: int | None):
        self._folder, self._before = folder, before
        self._asked = False
        self.at_once: str | None = None
        """The signal that ended the run without a checkpoint."""
        self.kill: Callable[[], None] = lambda: None
        """Kills the run's processes, if there are any."""
        self.process_ids: Callable[[], Sequence[int]] = lambda: ()

    def __call__(self, number: int) -> None:
        if self._asked and number != signal.SIGINT:
            return
        name = _name(number)
        if self._asked or self._is_starting():
            self.at_once = name
            _say(
                "\nStopping now." if self._asked else "\nStopping now: before the first step there is nothing to save."
            )
            self.kill()
            return
        self._asked = True
        ids = ", ".join(map(str, self.process_ids()))
        named = f" (processes {ids})" if ids else ""
        _say(f"\nStopping: writing a checkpoint first. Press Ctrl-C again to stop now{named}.")
        try:
            self._folder.ask_to_stop(f"asked by {name}")
        except OSError as error:
            _say(f"error: cannot write {self._folder.stop} ({error.strerror}). Press Ctrl-C again to stop now{named}.")

    def _is_starting(self) -> bool:
        if self._folder.status_time() == self._before:
            return True
        try:
            return self._folder.recorded_status().state == "starting"
        except UserError:
            return False


@contextlib.contextmanager
def on_stop_signals(react: Callable[[int], None]) -> Iterator[None]:
    """Meanwhile, Ctrl-C, SIGTERM and SIGUSR1 make this process do no more than `react`, also if repeated.

    What comes later is ignored, so that the exit code is that of the run.
    """
    for number in _SIGNALS:
        signal.signal(number, lambda received, _: react(received))
    try:
        yield
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def end_on_stop_signals() -> None:
    """From now on Ctrl-C, SIGTERM and SIGUSR1 end this process, which has started nothing, with a message."""

    def end(number: int, frame: FrameType | None) -> None:
        _say(f"\nEnded by {_name(number)} before training began.")
        leave(EXIT_CODES["stopped"])

    for number in _SIGNALS:
        signal.signal(number, end)


def _name(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
