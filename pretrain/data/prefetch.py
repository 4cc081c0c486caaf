"""Prefetcher: builds steps ahead of time in a thread.

A thread suffices: the batches of a rank take a few per cent of one core (benchmarks/results/loader.md), and numpy
releases the interpreter lock. Unlike processes, a thread leaves no files in /dev/shm and no orphans.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from pretrain.data.loader import Loader, LoaderStep
from pretrain.data.mixture import MixturePosition

_AHEAD = 2  # steps built in advance
_CLOSE_SECONDS = 5.0  # a stopping run must still write its checkpoint

Ready = TypeVar("Ready")


class Prefetcher(Generic[Ready]):
    """Runs a Loader ahead. Steps that were built but not taken do not count as consumed.

    Args:
        loader: builds the steps; closed with the prefetcher.
        steps_done, position: where to begin.
        prepare: further work on a step in the thread, such as copying it to the device.
    """

    def __init__(
        self, loader: Loader, steps_done: int, position: MixturePosition, prepare: Callable[[LoaderStep], Ready]
    ) -> None:
        self._loader, self._prepare = loader, prepare
        self._queue: queue.Queue[Ready | Exception] = queue.Queue(maxsize=_AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(steps_done, position), name="prefetch", daemon=True)
        self._thread.start()

    def next(self) -> Ready:
        """The next step; re-raises errors of the loader."""
        step = self._queue.get()
        if isinstance(step, Exception):
            raise step
        return step

    def close(self) -> None:
        """Stop the thread after its current step. A thread that still waits for a network is abandoned."""
        self._closed.set()
        give_up = time.monotonic() + _CLOSE_SECONDS
        while self._thread.is_alive() and time.monotonic() < give_up:
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue
        self._loader.close()

    def _fill(self, steps_done: int, position: MixturePosition) -> None:
        while not self._closed.is_set():
            try:
                step = self._loader.step(steps_done, position)
                ready = self._prepare(step)
            except Exception as error:
                self._queue.put(error)
                return
            steps_done, position = steps_done + 1, step.after
            self._queue.put(ready)
