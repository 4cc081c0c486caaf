"""Batches ahead of their use: a thread builds them, and copies them to the training device.

A thread suffices: the batches of a rank take a few per cent of one core (benchmarks/results/loader.md), and numpy
releases the interpreter lock. Unlike processes, a thread leaves no files in /dev/shm and no orphans.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from pretrain.data.batch import Batch
from pretrain.data.loader import Loader, LoaderStep
from pretrain.data.mixture import MixturePosition
from pretrain.masking import RowGroup

_ARRAYS = ("tokens", "positions", "cu_seqlens", "masked_positions", "labels", "weights")  # the last may be None
_AHEAD = 2  # steps that are built in advance
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


@dataclass(frozen=True)
class DeviceBatch:
    """A Batch whose arrays are tensors on the device, of the same shapes and types.

    copied: event after the copies; a stream that uses the tensors waits for it. None on a CPU.
    longest, weights, groups: see Batch.
    """

    tokens: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    masked_positions: Tensor
    labels: Tensor
    seq_len: int
    longest: int
    copied: "torch.cuda.Event | None"
    weights: Tensor | None = None
    groups: tuple[RowGroup, ...] = ()

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments of a model's forward pass, by name."""
        return {name: getattr(self, name) for name in (*_ARRAYS, "seq_len", "longest", "groups")}

    def scaled(self, factors: Sequence[Tensor]) -> dict[str, Any]:
        """`inputs`, the weights of each objective's predictions being multiplied by its factor []."""
        by_place = torch.cat([factors[group.objective].float().expand(group.places) for group in self.groups])
        return self.inputs | {"weights": by_place if self.weights is None else by_place * self.weights}

    def wait(self) -> "DeviceBatch":
        """Make the current stream wait for the copies; the host does not wait."""
        if self.copied:
            stream = torch.cuda.current_stream(self.tokens.device)
            stream.wait_event(self.copied)
            for name in _ARRAYS:
                if (tensor := getattr(self, name)) is not None:
                    tensor.record_stream(stream)  # the allocator must not reuse its memory before this stream is done
        return self


class DeviceFeed:
    """Copies batches to a device.

    On CUDA each array goes into pinned memory of torch's caching allocator. The allocator reuses a buffer only after
    its copy, so there are as many buffers as batches in flight. On a CPU, tensors share the arrays' memory.

    Attributes:
        stream: the CUDA stream of the copies; None on a CPU.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, batch: Batch) -> DeviceBatch:
        if self.stream is None:
            return self._copy(batch)
        # Set the device too: a new thread starts on device 0, and would allocate memory there.
        with torch.cuda.device(self._device), torch.cuda.stream(self.stream):
            return self._copy(batch)

    def _copy(self, batch: Batch) -> DeviceBatch:
        tensors: dict[str, Any] = {name: self._copied(getattr(batch, name)) for name in _ARRAYS}
        copied = self.stream.record_event() if self.stream else None
        return DeviceBatch(**tensors, seq_len=batch.seq_len, longest=batch.longest, copied=copied, groups=batch.groups)

    def _copied(self, array: NDArray[Any] | None) -> Tensor | None:
        tensor = None if array is None else torch.from_numpy(array)
        return tensor.pin_memory().to(self._device, non_blocking=True) if self.stream and tensor is not None else tensor
