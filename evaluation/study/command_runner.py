"""Run `maskwright` commands one at a time as child processes; their output goes to a log file."""

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from data_prep.processes import die_with_parent

POLL_SECONDS = 1.0
PROGRAM = (sys.executable, "-m", "launchers.cli")


class Stopped(Exception):
    """A study or one of its runs received a request to stop, and the running command has exited cleanly.

    Args:
        run: the run that received the request; None: the study.
    """

    def __init__(self, run: Path | None = None) -> None:
        super().__init__()
        self.run = run


class Maskwright(Protocol):
    """Run `maskwright WORDS` and return the exit code. Call `look` every second while the command runs."""

    def __call__(self, words: Sequence[str], log: Path, look: Callable[[], None] = ...) -> int: ...


class Commands:
    """Runs commands as child processes. Inside `with`, it forwards stop requests and then starts no more commands.

    Args:
        on_stop: returns a context manager that calls a function with the number of each stop signal.
    """

    def __init__(
        self, on_stop: Callable[[Callable[[int], None]], AbstractContextManager[None]], program: Sequence[str] = PROGRAM
    ) -> None:
        self._program = program
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._signals = on_stop(self._stop)

    def __enter__(self) -> "Commands":
        self._signals.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._signals.__exit__(*error)

    def __call__(self, words: Sequence[str], log: Path, look: Callable[[], None] = lambda: None) -> int:
        """Run a command and return its exit code.

        Raises:
            Stopped: if a request to stop arrived before the end.
        """
        self._check()
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            self._child = subprocess.Popen(
                [*self._program, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that only this process forwards Ctrl-C, once
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),
            )
            if self._stopping:  # the request arrived before the process started
                self._child.terminate()
            code = self._wait(look)
        self._check()
        return code

    def _wait(self, look: Callable[[], None]) -> int:
        assert self._child
        while True:
            try:
                return self._child.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                look()

    def _check(self) -> None:
        if self._stopping:
            raise Stopped

    def _stop(self, number: int) -> None:
        if not self._stopping and self._child and self._child.poll() is None:
            self._child.terminate()
        self._stopping = True
