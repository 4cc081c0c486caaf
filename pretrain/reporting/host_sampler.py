"""What a machine does: processors, memory, disks, network, and its GPUs."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import psutil

_MEGABYTE = 1e6


class Sampler(Protocol):
    """Samples something of this machine: names and values."""

    def __call__(self) -> dict[str, float]: ...


class HostSampler:
    """Shares in percent of the whole machine; disks and network in 10**6 bytes a second since the sample before.

    Args:
        gpus: samples those.
        clock: gives seconds, and never runs backwards.
    """

    def __init__(self, gpus: Sampler, clock: Callable[[], float] = time.monotonic):
        self._gpus, self._clock = gpus, clock
        psutil.cpu_percent()  # what it gives is since the call before
        self._at, self._bytes = clock(), _bytes_moved()

    def __call__(self) -> dict[str, float]:
        """Raises OSError, psutil.Error or RuntimeError if the machine does not tell."""
        now, moved = self._clock(), _bytes_moved()
        found = {"cpu_percent": psutil.cpu_percent(), "memory_percent": psutil.virtual_memory().percent}
        found |= rates(self._bytes, moved, now - self._at)
        self._at, self._bytes = now, moved
        return found | self._gpus()


def rates(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Bytes counted so far, by name, as 10**6 bytes a second; nothing for a counter that is new or began anew."""
    return {
        f"{name}_mb_per_second": (count - before[name]) / seconds / _MEGABYTE
        for name, count in after.items()
        if seconds > 0 and count >= before.get(name, count + 1)
    }


def _bytes_moved() -> dict[str, int]:
    found: dict[str, int] = {}
    if disks := psutil.disk_io_counters():  # None where there are none, as in some containers
        found |= {"disk_read": disks.read_bytes, "disk_write": disks.write_bytes}
    cards = [card for name, card in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    if cards:
        found["network_received"] = sum(card.bytes_recv for card in cards)
        found["network_sent"] = sum(card.bytes_sent for card in cards)
    return found
