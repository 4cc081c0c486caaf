"""Time on a device, without waiting for it: instants, and timers of steps and of their forward passes."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator

import torch


class Instant:
    """The moment at which a device has done what the host has asked of it so far.

    A GPU works behind the host, so that the host's own clock would show when a step was launched.
    """

    def __init__(self, device: torch.device):
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        self._clock = time.monotonic()
        if self._event:
            self._event.record()

    @property
    def is_reached(self) -> bool:
        """Whether the device has done it by now. A CPU always has: it works with the host."""
        return self._event is None or self._event.query()

    def seconds_since(self, earlier: "Instant") -> float:
        """Seconds between two instants, which the device must have reached."""
        if self._event and earlier._event:
            return earlier._event.elapsed_time(self._event) / 1000
        return self._clock - earlier._clock


class ComputeTimer:
    """Adds up the time of what runs within `measure`: the work of a rank before it first waits for other ranks."""

    def __init__(self, device: torch.device):
        self._device = device
        self._pending: deque[tuple[Instant, Instant]] = deque()

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        began = Instant(self._device)
        yield
        self._pending.append((began, Instant(self._device)))

    def take(self) -> float:
        """Seconds measured since the last call; on a GPU, of slightly earlier steps."""
        seconds = 0.0
        while self._pending and self._pending[0][1].is_reached:
            began, ended = self._pending.popleft()
            seconds += ended.seconds_since(began)
        return seconds


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
