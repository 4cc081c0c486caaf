"""Current phase of a rank. The training thread sets it, and the watchdog reads it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Phase = Literal[
    "start", "data", "collective", "forward", "backward", "reduction", "step", "journal", "evaluation", "checkpoint"
]
"""In the order in which a step goes through them."""


@dataclass(frozen=True)
class At:
    """A place in training, and since when (seconds of a clock that never jumps)."""

    step: int
    phase: Phase
    since: float


class PhaseMarker:
    """The phase of the training thread, and the first step after the last start. Entering a phase takes a microsecond.

    Attributes:
        listener: called at the start of each phase; None for no listener.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.at, self.first_step = At(0, "start", clock()), 0
        self.listener: Callable[[Phase], None] | None = None

    def enter(self, phase: Phase, step: int | None = None) -> None:
        """Enter a phase; the step stays the same if none is given."""
        if self.at.phase == "start" and phase != "start":
            self.first_step = self.at.step if step is None else step
        self.at = At(self.at.step if step is None else step, phase, self._clock())
        if self.listener:
            self.listener(phase)
