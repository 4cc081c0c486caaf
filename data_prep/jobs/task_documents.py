"""Documents of one task: read and clean them; count dropped documents by reason and list unreadable rows."""

import contextlib
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from data_prep.cleaning import Cleaning, Grams, clean_all, contaminated, normalize
from data_prep.errors import UserError
from data_prep.files import atomic_writer, make_folder
from data_prep.jobs.input_locations import InputLocations
from data_prep.jobs.preparation_plan import PreparationPlan
from data_prep.sources import RowReader, SourceInput, SourceRow

BATCH_CHARACTERS = 1 << 22  # smaller batches are slower: with 1 MB, a task took 9% longer


@dataclass(frozen=True)
class Unreadable:
    """A row that cannot be read: its file, its line counted from the start of the task, and the reason."""

    file: str
    line: int
    reason: str


class Quarantine(contextlib.ExitStack):
    """A JSON Lines file of unreadable rows. It exists only if there are any."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.first: Unreadable | None = None
        self._file: Any = None

    def write(self, row: Unreadable) -> None:
        if self._file is None:
            self.first = row
            make_folder(self.path.parent)
            self._file = self.enter_context(atomic_writer(self.path))
        self._file.write(orjson.dumps(row) + b"\n")


@dataclass
class TaskDocuments:
    """Batches of a task's documents, in order. Iteration counts dropped documents in `left_out`, by reason.

    Every stage that reads a task gets the same documents in the same order, so an index identifies a document.
    """

    plan: PreparationPlan
    task: int
    place: InputLocations
    evaluation: Grams | None
    quarantine: Quarantine | None = None
    left_out: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        unit = self.plan.tasks[self.task]
        self.input = self.plan.inputs[unit.input]
        self.rows = self._open(unit.first, unit.last)

    def _open(self, first: int, last: int) -> RowReader:
        source = SourceInput(self.input.source, self.place.locations[self.plan.tasks[self.task].input], self.input.kind)
        return RowReader(source, first, last, self.plan.settings.reading, self.place.open_cache())

    def __iter__(self) -> Iterator[list[SourceRow]]:
        for batch in self._batches():
            if kept := self._cleaned(batch):
                yield kept

    def _batches(self) -> Iterator[list[SourceRow]]:
        """Readable documents, about BATCH_CHARACTERS at a time."""
        batch: list[SourceRow] = []
        characters = 0
        for row in self.rows:
            if row.reason:
                self.reject(row.line, row.reason)
            elif not row.text or row.text.isspace():
                self.left_out["empty"] += 1
            else:
                batch.append(row)
                characters += len(row.text)
                if characters >= BATCH_CHARACTERS:
                    yield batch
                    batch, characters = [], 0
        if batch:
            yield batch

    def _cleaned(self, batch: list[SourceRow]) -> list[SourceRow]:
        cleaning = self.plan.settings.cleaning
        if cleaning == Cleaning() and self.evaluation is None:
            return batch
        texts, reasons = clean_all([row.text for row in batch], cleaning)
        if self.evaluation is not None:
            bad = contaminated(texts, self.evaluation)
            reasons = [reason or "contaminated" * bool(out) for reason, out in zip(reasons, bad, strict=True)]
        self.left_out.update(filter(None, reasons))
        kept = [row._replace(text=text) for row, text, reason in zip(batch, texts, reasons, strict=True) if not reason]
        if not self.plan.settings.pairs:
            return kept
        return [row._replace(wrong=normalize(row.wrong or "", cleaning.normalize)) for row in kept]

    def reject(self, line: int, reason: str) -> None:
        """Count and list a row that cannot be used. Raises UserError in a strict preparation."""
        if self.place.strict:
            before = self._open(0, self.plan.tasks[self.task].first)
            deque(before, maxlen=0)
            raise UserError(
                f"{self.input.name} line {before.lines + line}: {reason}; fix it, or prepare without --strict."
            )
        self.left_out["unreadable"] += 1
        if self.quarantine is not None:
            self.quarantine.write(Unreadable(self.input.name, line, reason))


def quarantine_path(out: Path, task: int) -> Path:
    return out / "prep" / "quarantine" / f"{task:05d}.jsonl"
