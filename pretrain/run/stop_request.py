"""Requests to stop: SIGTERM, SIGUSR1, or a file named STOP in the run folder."""

import signal
import time
from pathlib import Path
from types import FrameType

from data_prep.common.files import text_or_none

_POLL_SECONDS = 0.5
_LONGEST_REASON = 200  # characters


class StopRequest:
    """A request to stop this process; a second request has no effect."""

    def __init__(self, stop_file: Path):
        self._file, self._next_poll = stop_file, 0.0
        self.reason: str | None = None
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._receive)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, which asks through STOP

    def __bool__(self) -> bool:
        if self.reason is None and time.monotonic() >= self._next_poll:
            self._next_poll = time.monotonic() + _POLL_SECONDS
            if self._file.exists():
                origin = (text_or_none(self._file) or "")[:_LONGEST_REASON].strip()
                self.reason = origin or f"the file {self._file} was there"
        return self.reason is not None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.reason = f"received {signal.Signals(number).name}"
