"""Timer of the work of a rank before it first waits for other ranks: the forward passes of a step."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator

import torch


class ComputeTimer:
    """Adds up the time of what runs within `measure`, on the device, without waiting for it."""

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._seconds = 0.0
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        if self._cuda:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            yield
            end.record()
            self._pending.append((start, end))
        else:
            begin = time.monotonic()
            yield
            self._seconds += time.monotonic() - begin

    def take(self) -> float:
        """Seconds measured since the last call; on a GPU, of slightly earlier steps."""
        while self._pending and self._pending[0][1].query():
            start, end = self._pending.popleft()
            self._seconds += start.elapsed_time(end) / 1000
        seconds, self._seconds = self._seconds, 0.0
        return seconds
