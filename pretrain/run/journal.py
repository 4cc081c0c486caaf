"""Journal of a run: the authoritative record of its metrics, one JSON object per line.

`{"step": 12, "time": 1730000000.25, "metrics": {"train/loss": 6.25, ...}}`; `time` is Unix seconds, floats keep full
precision. A training step's line also has `"batch"`: what was trained on, for `maskwright replay`. JSON has no word for
NaN and the infinities: they are the strings "NaN", "Infinity" and "-Infinity".
"""

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from data_prep.common.files import AppendLog, limited_lines, open_plain
from data_prep.common.reading import MAX_NUMBER, YEAR_9999

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
RecordEntry = Callable[[int, dict[str, float], dict[str, Any] | None], None]
"""Records an entry: its step, its metrics and, of a training step, its batch."""


@dataclass(frozen=True)
class Entry:
    """The metrics of one optimizer step; `time` is in Unix seconds.

    batch: of a training step, JSON values: the `position` of the stream before it; `seq_len`, `rows` and `mask_rate` of
    its global batch, and the `checksum` of that; how many tokens were `replaced` because of
    damage; and `settings`, a digest of what else decides its rows and masks.
    """

    step: int
    time: float
    metrics: dict[str, float]
    batch: dict[str, Any] | None = None

    def to_line(self) -> bytes:
        """The journal line of this entry, with its newline."""
        metrics = {name: _to_json(float(value)) for name, value in self.metrics.items()}
        record = {"step": self.step, "time": self.time, "metrics": metrics}
        return orjson.dumps(record | ({"batch": self.batch} if self.batch else {})) + b"\n"

    @property
    def digest(self) -> str:
        """A short hash of the line."""
        return hashlib.sha256(self.to_line()).hexdigest()[:16]

    @classmethod
    def from_line(cls, line: bytes) -> "Entry | None":
        """The entry of a journal line; None if the line is torn or is not a journal entry."""
        try:
            record = orjson.loads(line)
            metrics = {name: _number(value) for name, value in record["metrics"].items()}
            step, seconds, batch = record["step"], _number(record["time"]), record.get("batch")
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        is_sound = type(step) is int and 0 <= step < MAX_NUMBER and 0 <= seconds < YEAR_9999
        return cls(step, seconds, metrics, batch) if is_sound and (batch is None or type(batch) is dict) else None


def _number(value: Any) -> float:
    """A number in the format of the journal; raises KeyError or TypeError for anything else."""
    if type(value) is str:
        return _NOT_FINITE[value]
    if type(value) not in (int, float):
        raise TypeError
    return float(value)


class JournalReader:
    """Reads the journal at `path`, also while it is written.

    Methods that read it from the start raise OSError if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self, batches: bool = False) -> list[Entry]:
        """The entries in order of step, one a step; their `batch` only if asked for, since it takes much memory.

        A step written again after a resume replaces, metric by metric, what stood there; steps of the earlier attempt
        that were not reached again still count. Torn lines are ignored.
        """
        entries: dict[int, Entry] = {}
        for _, entry in self.lines():
            if entry:
                entry = entry if batches else replace(entry, batch=None)
                entries[entry.step] = _joined(entries.get(entry.step), entry)
        return [entries[step] for step in sorted(entries)]

    def training_step(self, step: int) -> tuple[Entry | None, list[int]]:
        """The entry of a training step, with its `batch`, and the steps that have one."""
        joined: Entry | None = None
        steps = set()
        for _, entry in self.lines():
            if entry and entry.batch:
                steps.add(entry.step)
            if entry and entry.step == step:
                joined = _joined(joined, entry)
        return joined if step in steps else None, sorted(steps)

    def latest(self, size: int = 1 << 18) -> list[Entry]:
        """The entries in the last `size` bytes, unchanged, without their `batch`; none if they cannot be read."""
        try:
            with open_plain(self._path) as file:
                start = max(0, file.seek(0, os.SEEK_END) - size)
                file.seek(start)
                lines = file.read().splitlines()[1 if start else 0 :]
        except OSError:
            return []
        return [replace(entry, batch=None) for line in lines if (entry := Entry.from_line(line))]

    def last_step(self) -> int:
        """The step of the last line, read from the end of the file; -1 if no line is readable."""
        entries = self.latest(1 << 16)
        return entries[-1].step if entries else -1

    def lines(self, start: int = 0, stop: float = math.inf) -> Iterator[tuple[int, Entry | None]]:
        """(end, entry) of the whole lines that begin between two byte offsets; None for a damaged line.

        A last line without a newline is still being written, or was cut short by a kill.
        """
        with open_plain(self._path) as file:
            end = file.seek(start)
            for size, line in limited_lines(file):
                if end >= stop or not line.endswith(b"\n"):
                    return
                end += size
                yield end, Entry.from_line(line)


def _joined(earlier: Entry | None, later: Entry) -> Entry:
    if earlier is None:
        return later
    return replace(later, metrics={**earlier.metrics, **later.metrics}, batch=later.batch or earlier.batch)


class Journal:
    """Appends entries to the journal at `path`."""

    def __init__(self, path: Path) -> None:
        self._log = AppendLog(path)

    def append(self, step: int, metrics: dict[str, float], batch: dict[str, Any] | None = None) -> None:
        """Append one entry; raises OSError as AppendLog.append, and like that keeps the line for later."""
        self._log.append(Entry(step, time.time(), metrics, batch).to_line())

    def close(self) -> None:
        self._log.close()


def _to_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
