"""Collect system metrics of all nodes on rank 0 through files in RUN/system, without a collective.

On each node, a thread of one process rewrites a small file; a thread of rank 0 reads all files. So training waits
neither for a node nor for the file system. Rank 0 reports only files that have changed since it read them last: a lost
node is missing in the metrics, and no old value is reported as a new one.
"""

import contextlib
import json
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import psutil

from data_prep.errors import UserError
from data_prep.reading import parse_json, read_text
from pretrain.reporting.machine_sampler import MachineSampler, Sampler

_MAX_SAMPLE_BYTES = 1 << 20
_UNREAD = 8  # samples kept while the training thread does not call `latest`


class SystemMetrics:
    """Sample this node, if `rank` is its first rank, and gather the samples of all nodes on rank 0.

    Args:
        folder: the folder of the nodes' files.
        hosts: the host of each rank.
        seconds: time between two samples; 0 turns sampling off.
        sampler: samples this node; by default with psutil and NVML.
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
                self._file(self._host).unlink()

    def _run(self) -> None:
        sampler = self._sampler or MachineSampler()
        while not self._closed.wait(self._seconds):
            with contextlib.suppress(OSError, RuntimeError, psutil.Error):
                self._write(sampler())
            if self._is_main:
                self._found.append(self._news())

    def _write(self, values: dict[str, float]) -> None:
        """Replace this node's file atomically, as rank 0 may read it at any time."""
        self._number += 1
        file = self._file(self._host)
        new = file.with_suffix(".new")
        new.write_text(json.dumps(values | {"number": self._number}))  # so that each sample differs
        new.replace(file)

    def _news(self) -> dict[str, float]:
        """The values in the nodes' files that have changed since the last call."""
        values: dict[str, float] = {}
        for host in self._hosts:
            text = None
            with contextlib.suppress(UserError, ValueError):  # a file that is missing or damaged
                text = read_text(self._file(host), _MAX_SAMPLE_BYTES)
                sample: dict[str, float] = parse_json(text, dict[str, float]) if text != self._seen.get(host) else {}
                values |= {f"system/{host}/{name}": value for name, value in sample.items() if name != "number"}
            self._seen[host] = text
        return values

    def _file(self, host: str) -> Path:
        return self._folder / f"{host}.json"
