"""Report the phases of a start: a line on standard error for each, with the seconds since the start."""

import os
import sys
import time
from enum import Enum

from pretrain.run.folder import RunFolder

_BEGAN_VARIABLE = "MASKWRIGHT_BEGAN"
"""When the command or, without one, rank 0 began, by time.monotonic; processes inherit it."""


class StartPhase(Enum):
    """The phases of a start, in order."""

    LIBRARIES = "loading libraries"
    DATA = "reading the data set"
    MODEL = "building the model"
    FIRST_STEP = "first step"

    @classmethod
    def begin(cls, line: str) -> None:
        """Print the first line of a start, and its first phase; the seconds count from here."""
        os.environ[_BEGAN_VARIABLE] = str(time.monotonic())
        print(line, file=sys.stderr, flush=True)
        cls.LIBRARIES._print()

    @staticmethod
    def has_begun() -> bool:
        """Whether this process or the command that started it has printed the first line."""
        return _BEGAN_VARIABLE in os.environ

    def enter(self, folder: RunFolder | None) -> None:
        """On rank 0, print this phase and record it. `folder`: of a run that holds it; None only prints."""
        if os.environ.get("RANK", "0") == "0":
            self._print()
            if folder:
                folder.enter(self.value)

    def _print(self) -> None:
        began = float(os.environ.setdefault(_BEGAN_VARIABLE, str(time.monotonic())))
        print(f"{time.monotonic() - began:6.1f} s  {self.value}", file=sys.stderr, flush=True)
