"""What a rank is at: set by the thread that trains, read by the one that watches it."""

import time
from dataclasses import dataclass
from typing import Literal

Phase = Literal["start", "data", "collective", "forward", "backward", "step", "evaluation", "checkpoint"]
# In the order in which a step goes through them.
PHASES: tuple[Phase, ...] = ("start", "data", "collective", "forward", "backward", "step", "evaluation", "checkpoint")


@dataclass(frozen=True)
class At:
    """A place in training, and since when (seconds of a clock that never jumps)."""

    step: int
    phase: Phase
    since: float


class Pulse:
    """Where the training thread is, and the first step after the last start. Entering a phase takes a microsecond."""

    def __init__(self) -> None:
        self.at, self.first_step = At(0, "start", time.monotonic()), 0

    def enter(self, phase: Phase, step: int | None = None) -> None:
        """Go on to a phase, of the same step if none is given."""
        if self.at.phase == "start" and phase != "start":
            self.first_step = self.at.step if step is None else step
        self.at = At(self.at.step if step is None else step, phase, time.monotonic())
