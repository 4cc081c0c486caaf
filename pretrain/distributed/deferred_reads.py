"""Deferred device-to-host reads: a step never waits for its metrics."""

from collections import deque
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class DeferredReader(Generic[T]):
    """A queue of (label, device tensor) whose values are read `lag` steps after they were pushed.

    The lag is the same on every rank, so decisions made from values that all ranks share are made at the same step.
    """

    def __init__(self, lag: int):
        self._lag = lag
        self._pending: deque[tuple[T, Tensor, torch.cuda.Event | None]] = deque()

    def push(self, label: T, values: Tensor) -> list[tuple[T, list[float]]]:
        """Add 1-D `values`; returns the entries that are now due, oldest first."""
        event = None
        if values.is_cuda:
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            values = host.copy_(values, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._pending.append((label, values, event))
        return self._take(self._lag)

    def drain(self) -> list[tuple[T, list[float]]]:
        """The remaining entries."""
        return self._take(0)

    def _take(self, leave: int) -> list[tuple[T, list[float]]]:
        due = []
        while len(self._pending) > leave:
            label, values, event = self._pending.popleft()
            if event is not None:
                event.synchronize()
            due.append((label, values.tolist()))
        return due
