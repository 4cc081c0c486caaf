"""Columnar form of a journal, for curves and reports. It needs little memory for millions of steps."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.common.reading import MAX_NUMBER
from pretrain.run.journal import Entry, JournalReader

if TYPE_CHECKING:
    import pandas

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Series(NamedTuple):
    """One metric: steps [n] int64, strictly increasing, and values [n] float64."""

    steps: Ints
    values: Floats


@dataclass(frozen=True)
class JournalTable:
    """All L lines of a journal, in file order.

    steps [L] int64, times [L] float64 (Unix seconds).
    slots [L] int64: slots of the global batch; 0 on lines that are not of a training step.
    columns: for each metric its lines [n] int64, and its values [n] float64 on them.
    torn: how many lines could not be read.
    """

    steps: Ints
    times: Floats
    slots: Ints
    columns: dict[str, tuple[Ints, Floats]]
    torn: int = 0

    @classmethod
    def read(cls, path: Path) -> "JournalTable":
        """The journal at `path`. Torn lines are counted; a last line that is being written is not. Raises OSError."""
        torn = 0

        def entries() -> Iterator[Entry]:
            nonlocal torn
            for _, entry in JournalReader(path).lines():
                if entry:
                    yield entry
                else:
                    torn += 1

        return replace(cls.of(entries()), torn=torn)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "JournalTable":
        """Entries in columns."""
        steps, times, slots = array("q"), array("d"), array("q")
        columns: dict[str, tuple[array[int], array[float]]] = {}
        for number, entry in enumerate(entries):
            steps.append(entry.step)
            times.append(entry.time)
            slots.append(_slots(entry))
            for name, value in entry.metrics.items():
                lines, values = columns.setdefault(name, (array("q"), array("d")))
                lines.append(number)
                values.append(value)
        return cls(
            np.array(steps, np.int64),
            np.array(times, np.float64),
            np.array(slots, np.int64),
            {name: (np.array(lines, np.int64), np.array(values)) for name, (lines, values) in columns.items()},
        )

    def series(self, name: str, abandoned: bool = True) -> Series:
        """A metric: of a step written twice, the later line's value. `abandoned`: also after the step trained last."""
        lines, values = self.columns.get(name, (np.zeros(0, np.int64), np.zeros(0)))
        kept = last_of_each(self.steps[lines])
        if not abandoned and len(self.trained):
            kept = kept[self.steps[lines][kept] <= self.steps[self.trained[-1]]]
        return Series(self.steps[lines][kept], values[kept])

    def frame(self) -> "pandas.DataFrame":
        """The valid values of all metrics: a row for each step, a column for each metric; NaN where it has no value."""
        import pandas

        series = {name: self.series(name) for name in self.columns}
        columns = {name: pandas.Series(values, steps) for name, (steps, values) in series.items()}
        return pandas.DataFrame(columns).sort_index().rename_axis("step")

    def on_lines(self, name: str) -> Floats:
        """A metric on each line [L]; NaN where it is not."""
        column = np.full(len(self.steps), np.nan)
        if name in self.columns:
            lines, values = self.columns[name]
            column[lines] = values
        return column

    @property
    def trained(self) -> Ints:
        """The lines of training steps."""
        return np.flatnonzero(self.slots)

    @property
    def kept(self) -> Ints:
        """The lines of training steps that count, in order of step: of a step trained again, the last one."""
        return self.trained[last_of_each(self.steps[self.trained])]

    @property
    def seconds(self) -> Floats:
        """Duration of the step of each line [L]; 0 if it is not known."""
        return np.nan_to_num(self.on_lines("speed/step_seconds"), posinf=0.0, neginf=0.0)

    @property
    def tokens(self) -> Floats:
        """Real tokens of the step of each line [L]; 0 where that is not known."""
        return np.nan_to_num(self.on_lines("speed/tokens_per_second")) * self.seconds


def last_of_each(steps: Ints) -> Ints:
    """The index of the last occurrence of each step, in order of step."""
    order = np.argsort(steps, kind="stable")
    ordered = steps[order]
    return order[np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))] if len(steps) else order


def _slots(entry: Entry) -> int:
    """Slots of a training step's batch, 0 for other lines."""
    if entry.batch:
        rows, seq_len = (entry.batch.get(name, 1) for name in ("rows", "seq_len"))
        if type(rows) is int and type(seq_len) is int:
            return min(max(1, rows * seq_len), MAX_NUMBER - 1)
    return int("train/loss" in entry.metrics)
