"""How what each node samples gets into the journal of rank 0: by files in the run folder, without a collective.

A thread of one process a node rewrites a small file in RUN/system; rank 0's reads all of them. Training neither waits
for a node nor for the file system, and a node that is lost or stopped only says nothing any more: what is reported is
what has changed since the last look, so that no old value passes for a new one.
"""

import contextlib
import json
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from data_prep.errors import UserError
from data_prep.reading import parse_json
from data_prep.reading.untrusted_files import read_text
from pretrain.reporting.gpu_sampler import GpuSampler
from pretrain.reporting.host_sampler import HostSampler, Sampler

_MAX_SAMPLE_BYTES = 1 << 20
_UNREAD = 8  # samples kept for a training thread that does not come


@dataclass(frozen=True)
class _Sample:
    """The content of a node's file: how many samples it has written, and the values of the newest."""

    number: int
    values: dict[str, float]


class SystemMetrics:
    """Samples this node, if `rank` is the first there, and on rank 0 gathers what all nodes sample.

    Args:
        folder: where the nodes' files are.
        hosts: where each rank is.
        seconds: between two samples; 0: none.
        sampler: of this node; by default of what psutil and NVML know.
    """

    def __init__(self, folder: Path, rank: int, hosts: Sequence[str], seconds: float, sampler: Sampler | None = None):
        self._folder, self._host, self._is_main, self._seconds = folder, hosts[rank], rank == 0, seconds
        self._hosts, self._samples = list(dict.fromkeys(hosts)), hosts.index(hosts[rank]) == rank
        self._sampler = sampler
        self._number = 0
        self._seen: dict[str, str | None] = {}
        self._found: deque[dict[str, float]] = deque(maxlen=_UNREAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system metrics", daemon=True)

    def start(self) -> None:
        if not self._seconds or not self._samples:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
        if self._is_main:
            self._news()  # of an earlier part of the run
        self._thread.start()

    def latest(self) -> dict[str, float]:
        """What has come in since the last call, of each value the newest: `system/HOST/NAME`. Waits for nothing."""
        found: dict[str, float] = {}
        while self._found:
            found |= self._found.popleft()
        return found

    def close(self) -> None:
        """Stop sampling."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1)  # it may wait for a file system
            with contextlib.suppress(OSError):
                self._file(self._host).unlink()

    def _run(self) -> None:
        sampler = self._sampler or self._of_this_machine()
        while not self._closed.wait(self._seconds):
            with contextlib.suppress(OSError, RuntimeError, psutil.Error):
                self._write(sampler())
            if self._is_main:
                self._found.append(self._news())

    def _of_this_machine(self) -> Sampler:
        gpus = GpuSampler()
        if gpus.problem:
            print(f"warning: {self._host}: {gpus.problem}", file=sys.stderr, flush=True)
        return HostSampler(gpus)

    def _write(self, values: dict[str, float]) -> None:
        """Whole or not at all, for whoever reads meanwhile."""
        self._number += 1
        file = self._file(self._host)
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"number": self._number, "values": values}))
        new.replace(file)

    def _news(self) -> dict[str, float]:
        """What the nodes' files say that have changed since the last look."""
        found: dict[str, float] = {}
        for host in self._hosts:
            text = self._read(host)
            if text is not None and text != self._seen.get(host):
                found |= _named(host, text)
            self._seen[host] = text
        return found

    def _read(self, host: str) -> str | None:
        try:
            return read_text(self._file(host), _MAX_SAMPLE_BYTES)
        except UserError:
            return None

    def _file(self, host: str) -> Path:
        return self._folder / f"{host}.json"


def _named(host: str, text: str) -> dict[str, float]:
    try:
        sample: _Sample = parse_json(text, _Sample)
    except ValueError:
        return {}
    return {f"system/{host}/{name}": float(value) for name, value in sample.values.items()}
