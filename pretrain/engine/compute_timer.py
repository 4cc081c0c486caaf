"""Timer of the work of a rank before it first waits for other ranks: the forward passes of a step."""

import time
from collections import deque
from types import TracebackType

import torch


class ComputeTimer:
    """Adds up the time of what runs within `with`, on the device, without waiting for it."""

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._start = 0.0
        self._seconds = 0.0
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def __enter__(self) -> None:
        if self._cuda:
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._pending.append(pair)
            pair[0].record()
        else:
            self._start = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._cuda:
            self._pending[-1][1].record()
        else:
            self._seconds += time.monotonic() - self._start

    def take(self) -> float:
        """Seconds measured since the last call; on a GPU, of slightly earlier steps."""
        while self._pending and self._pending[0][1].query():
            start, end = self._pending.popleft()
            self._seconds += start.elapsed_time(end) / 1000
        seconds, self._seconds = self._seconds, 0.0
        return seconds
