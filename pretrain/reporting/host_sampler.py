"""Utilization of this machine: processors, memory, disks, network, and its GPUs."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import psutil

_MEGABYTE = 1e6


class Sampler(Protocol):
    """A callable that samples this machine and returns values by name."""

    def __call__(self) -> dict[str, float]: ...


class HostSampler:
    """Sample the whole machine: processors and memory in percent, disks and network in 10**6 bytes a second.

    Rates are averages since the previous sample.

    Args:
        gpus: samples the GPUs.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, gpus: Sampler, clock: Callable[[], float] = time.monotonic):
        self._gpus, self._clock = gpus, clock
        psutil.cpu_percent()  # it measures since its previous call
        self._at, self._bytes = clock(), _bytes_moved()

    def __call__(self) -> dict[str, float]:
        """Sample once. Raises OSError, psutil.Error or RuntimeError if a value cannot be read."""
        now, moved = self._clock(), _bytes_moved()
        sample = {"cpu_percent": psutil.cpu_percent(), "memory_percent": psutil.virtual_memory().percent}
        sample |= rates(self._bytes, moved, now - self._at)
        self._at, self._bytes = now, moved
        return sample | self._gpus()


def rates(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Rates in 10**6 bytes a second from two readings of byte counters. New and reset counters are left out."""
    return {
        f"{name}_mb_per_second": (count - before[name]) / seconds / _MEGABYTE
        for name, count in after.items()
        if seconds > 0 and count >= before.get(name, count + 1)
    }


def _bytes_moved() -> dict[str, int]:
    counters: dict[str, int] = {}
    if disks := psutil.disk_io_counters():  # None in some containers
        counters |= {"disk_read": disks.read_bytes, "disk_write": disks.write_bytes}
    cards = [card for name, card in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    if cards:
        counters["network_received"] = sum(card.bytes_recv for card in cards)
        counters["network_sent"] = sum(card.bytes_sent for card in cards)
    return counters
