"""Utilization of this machine: processors, memory, disks, network, and its GPUs."""

import contextlib
import time
from collections.abc import Callable, Mapping

import psutil
import torch

Sampler = Callable[[], dict[str, float]]

_MEGABYTE = 1e6
_OF_GPU: dict[str, Callable[[int], float]] = {
    "utilization_percent": lambda gpu: torch.cuda.utilization(gpu),
    "memory_percent": lambda gpu: (
        100 * torch.cuda.device_memory_used(gpu) / torch.cuda.get_device_properties(gpu).total_memory
    ),
    "power_watts": lambda gpu: torch.cuda.power_draw(gpu) / 1000,
    "temperature_celsius": lambda gpu: torch.cuda.temperature(gpu),
}


class MachineSampler:
    """Sample the whole machine: processors and memory in percent, disks and network in 10**6 bytes a second, GPUs.

    Rates are averages since the previous sample. `clock` is monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        psutil.cpu_percent()  # it measures since its previous call
        self._at, self._bytes = clock(), _bytes_moved()

    def __call__(self) -> dict[str, float]:
        """Sample once. Raises OSError, psutil.Error or RuntimeError if a value cannot be read."""
        now, moved = self._clock(), _bytes_moved()
        sample = {"cpu_percent": psutil.cpu_percent(), "memory_percent": psutil.virtual_memory().percent}
        sample |= rates(self._bytes, moved, now - self._at)
        self._at, self._bytes = now, moved
        return sample | sample_gpus()


def rates(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Rates in 10**6 bytes a second from two readings of byte counters. New and reset counters are left out."""
    return {
        f"{name}_mb_per_second": (count - before[name]) / seconds / _MEGABYTE
        for name, count in after.items()
        if seconds > 0 and count >= before.get(name, count + 1)
    }


def sample_gpus() -> dict[str, float]:
    """Sample the visible GPUs, numbered as in PyTorch: `gpu0_power_watts` and so on.

    Values that cannot be read are left out: a virtual GPU has no power, and all need the package nvidia-ml-py.
    """
    sample: dict[str, float] = {}
    for gpu in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        for name, read in _OF_GPU.items():
            with contextlib.suppress(Exception):  # NVML's error classes are in a package that may be missing
                sample[f"gpu{gpu}_{name}"] = float(read(gpu))
    return sample


def _bytes_moved() -> dict[str, int]:
    counters: dict[str, int] = {}
    if disks := psutil.disk_io_counters():  # None in some containers
        counters |= {"disk_read": disks.read_bytes, "disk_write": disks.write_bytes}
    cards = [card for name, card in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    if cards:
        counters["network_received"] = sum(card.bytes_recv for card in cards)
        counters["network_sent"] = sum(card.bytes_sent for card in cards)
    return counters
