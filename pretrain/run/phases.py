"""Phases of a run: the phases of its start, for the user, and the phase of the training thread, for the watchdog."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from pretrain.run.folder import RunFolder

_BEGAN_VARIABLE = "MASKWRIGHT_BEGAN"
"""When the command or, without one, rank 0 began, by time.monotonic; processes inherit it."""
RunPhase = Literal[
    "start", "data", "collective", "forward", "backward", "reduction", "step", "journal", "evaluation", "checkpoint"
]
"""In the order of a step."""


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


@dataclass(frozen=True)
class At:
    """A place in training, and since when (seconds of a clock that never jumps)."""

    step: int
    phase: RunPhase
    since: float


class PhaseMarker:
    """The phase of the training thread, and the first step after the last start. Entering a phase takes a microsecond.

    Attributes:
        listener: called at the start of each phase; None for no listener.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.at, self.first_step = At(0, "start", clock()), 0
        self.listener: Callable[[RunPhase], None] | None = None

    def enter(self, phase: RunPhase, step: int | None = None) -> None:
        """Enter a phase; the step stays the same if none is given."""
        if self.at.phase == "start" and phase != "start":
            self.first_step = self.at.step if step is None else step
        self.at = At(self.at.step if step is None else step, phase, self._clock())
        if self.listener:
            self.listener(phase)
