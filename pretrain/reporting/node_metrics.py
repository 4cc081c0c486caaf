"""Utilization of all nodes, collected on rank 0 through files in RUN/system, without a collective.

On each node, a thread of one process rewrites a small file; a thread of rank 0 reads all files. So training waits
neither for a node nor for the file system. Rank 0 reports only files that have changed since it read them last: a lost
node is missing in the metrics, and no old value is reported as a new one.
"""

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
import torch

from data_prep.common.errors import UserError
from data_prep.common.files import no_link
from data_prep.common.reading import parse_json, read_text

Sampling = Callable[[], dict[str, float]]

_MAX_SAMPLE_BYTES = 1 << 20
_UNREAD = 8  # samples kept while the training thread does not call `latest`
_MEGABYTE = 1e6
_OF_GPU: dict[str, Callable[[int], float]] = {
    "utilization_percent": lambda gpu: torch.cuda.utilization(gpu),
    "memory_percent": lambda gpu: (
        100 * torch.cuda.device_memory_used(gpu) / torch.cuda.get_device_properties(gpu).total_memory
    ),
    "power_watts": lambda gpu: torch.cuda.power_draw(gpu) / 1000,
    "temperature_celsius": lambda gpu: torch.cuda.temperature(gpu),
}


class SystemMetrics:
    """Sample this node, if `rank` is its first rank, and gather the samples of all nodes on rank 0.

    Args:
        folder: the folder of the nodes' files.
        hosts: the host of each rank.
        seconds: time between two samples; 0 turns sampling off.
        sampler: samples this node; by default with psutil and NVML.
    """

    def __init__(self, folder: Path, rank: int, hosts: Sequence[str], seconds: float, sampler: Sampling | None = None):
        self._folder, self._is_main, self._seconds = folder, rank == 0, seconds
        self._file, self._samples = folder / f"{hosts[rank]}.json", hosts.index(hosts[rank]) == rank
        self._sampler = sampler
        self._seen: dict[str, str | None] = dict.fromkeys(hosts)  # the last content of each host's file
        self._found: deque[dict[str, float]] = deque(maxlen=_UNREAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system metrics", daemon=True)

    def start(self) -> None:
        if not self._seconds or not self._samples:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
        if self._is_main:
            self._news()  # discard files of an earlier start
        self._thread.start()

    def latest(self) -> dict[str, float]:
        """The newest value of each metric `system/HOST/NAME` that arrived since the last call. Does not block."""
        values: dict[str, float] = {}
        while self._found:
            values |= self._found.popleft()
        return values

    def close(self) -> None:
        """Stop sampling."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1)  # it may wait for a file system
            with contextlib.suppress(OSError):
                self._file.unlink()

    def _run(self) -> None:
        sampler = self._sampler or MachineSampler()
        while not self._closed.wait(self._seconds):
            with contextlib.suppress(OSError, RuntimeError, psutil.Error):
                self._write(sampler())
            if self._is_main:
                self._found.append(self._news())

    def _write(self, values: dict[str, float]) -> None:
        """Replace this node's file atomically, as rank 0 may read it at any time."""
        new = self._file.with_suffix(".new")
        with open(new, "w", opener=no_link) as file:
            file.write(json.dumps(values | {"time": time.time()}))  # so that each sample differs
        new.replace(self._file)

    def _news(self) -> dict[str, float]:
        """The values in the nodes' files that have changed since the last call."""
        values: dict[str, float] = {}
        for host, seen in self._seen.items():
            text = None
            with contextlib.suppress(UserError, ValueError):  # a file that is missing or damaged
                text = read_text(self._folder / f"{host}.json", _MAX_SAMPLE_BYTES)
                sample: dict[str, float] = parse_json(text, dict[str, float]) if text != seen else {}
                values |= {f"system/{host}/{name}": value for name, value in sample.items() if name != "time"}
            self._seen[host] = text
        return values


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
