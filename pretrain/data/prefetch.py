"""Builds steps ahead of time, in a thread.

A thread, not processes: a rank's batches take a few per cent of one core (benchmarks/results/loader.md), numpy does
that work outside the interpreter's lock, and a thread leaves nothing behind in /dev/shm or the process table however
training ends.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from pretrain.data.loader import Loader, LoaderStep
from pretrain.data.mixture import MixturePosition

_AHEAD = 2  # steps built before they are asked for
_CLOSE_SECONDS = 5.0  # a run that was asked to stop has a checkpoint to write

Ready = TypeVar("Ready")


class Prefetcher(Generic[Ready]):
    """Runs a Loader ahead. What it has built but nobody took does not count as consumed.

    Args:
        loader: builds the steps; closed with the prefetcher.
        steps_done, position: where to begin.
        prepare: what else is done to a step in the thread, such as copying it to the device.
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
        """The next step; re-raises what the loader raised."""
        step = self._queue.get()
        if isinstance(step, Exception):
            raise step
        return step

    def close(self) -> None:
        """Stop the thread, once it has finished the step it is at; one that waits for a network is left to itself."""
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
