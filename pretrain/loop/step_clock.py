"""Duration of steps on a device, and of the waits for data."""

import contextlib
import time
from collections.abc import Iterator

import torch

from pretrain.engine import Instant


class StepClock:
    """Measures steps back to back: a step begins when the one before it ended, unless the clock was paused.

    Attributes:
        waited: seconds that the last step waited for data.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._since: Instant | None = None
        self.waited = 0.0

    @contextlib.contextmanager
    def wait(self) -> Iterator[None]:
        """Measure a wait for data: a step begins."""
        start = time.monotonic()
        self._since = self._since or Instant(self._device)
        yield
        self.waited = time.monotonic() - start

    def end(self) -> tuple[Instant, Instant]:
        """When the step began and ended. The next one begins now."""
        ended = Instant(self._device)
        times, self._since = (self._since or ended, ended), ended
        return times

    def pause(self) -> None:
        """Something else takes time: the next step begins with its wait for data."""
        self._since = None
