"""Signal handling during training: the first signal asks the run to stop, a second Ctrl-C ends it."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from data_prep.common.processes import write_in_handler
from pretrain.run import EXIT_CODES, RunFolder

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StopSignals:
    """Handler of signals while a run's processes train.

    Before the first step there is nothing to save, so any signal ends the run. Later, the first signal requests a
    checkpoint. After it, Ctrl-C kills the run, and other signals are ignored.

    Args:
        folder: run folder.
        before: time of its last status (RunFolder.status_time) before the run was started.
    """

    def __init__(self, folder: RunFolder, before: int | None):
        self._folder, self._before = folder, before
        self._asked = False
        self.at_once: str | None = None  # the signal that ended the run without a checkpoint
        self.kill: Callable[[], None] = lambda: None  # kills the run's processes, if there are any

    def __call__(self, number: int) -> None:
        again, self._asked = self._asked, True  # first: another signal may interrupt this function
        if again and number != signal.SIGINT:
            return
        name = _name(number)
        if again or self._is_starting():
            self.at_once = name
            self.kill()
            why = "" if again else ": before the first step there is nothing to save"
            write_in_handler(f"\nStopping now{why}.")
            return
        try:
            self._folder.ask_to_stop(f"asked by {name}")
            write_in_handler("\nStopping: writing a checkpoint first. Press Ctrl-C again to stop now.")
        except OSError as error:
            write_in_handler(
                f"error: cannot write {self._folder.stop} ({error.strerror}). Press Ctrl-C again to stop now."
            )

    def _is_starting(self) -> bool:
        status = self._folder.status_or_none()
        return self._folder.status_time() == self._before or (status is not None and status.state == "starting")


@contextlib.contextmanager
def on_stop_signals(react: Callable[[int], None]) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGUSR1 only call `react` during the block, each time.

    Later signals are ignored, so that the exit code is the run's.
    """
    for number in _SIGNALS:
        signal.signal(number, lambda received, _: react(received))
    try:
        yield
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def end_on_stop_signals() -> None:
    """Make Ctrl-C, SIGTERM and SIGUSR1 end this process with a message, before it has started anything."""

    def end(number: int, frame: FrameType | None) -> None:
        write_in_handler(f"\nEnded by {_name(number)} before training began.")
        os._exit(EXIT_CODES["stopped"])  # a flush would raise if this interrupts a print

    for number in _SIGNALS:
        signal.signal(number, end)


def _name(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
