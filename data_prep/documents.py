"""The documents of one task: read, cleaned, and what is left out counted and named."""

import contextlib
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from data_prep.cleaning.contamination import Grams, contaminated
from data_prep.cleaning.text import clean
from data_prep.errors import UserError
from data_prep.files import atomic_writer
from data_prep.place import Place
from data_prep.plan import Plan
from data_prep.sources import Found, Rows, open_rows

BATCH_CHARACTERS = 1 << 20


class Document(NamedTuple):
    """A document that cleaning has kept, and where it comes from (as in Row)."""

    text: str
    line: int
    id: str | int | None


class Quarantine(contextlib.ExitStack):
    """A file of JSON lines, one for each unreadable row, that exists only if there is one."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.first: dict[str, Any] | None = None
        self._file: Any = None

    def write(self, row: dict[str, Any]) -> None:
        if self._file is None:
            self.first = row
            self.path.parent.mkdir(exist_ok=True)
            self._file = self.enter_context(atomic_writer(self.path))
        self._file.write(orjson.dumps(row) + b"\n")


@dataclass
class Documents:
    """Batches of a task's documents, in order. `left_out` counts the others by reason while iterating.

    Every stage that reads a task gets the same documents, so that a place in their sequence names one of them.
    """

    plan: Plan
    task: int
    place: Place
    evaluation: Grams | None
    quarantine: Quarantine | None = None
    left_out: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        unit = self.plan.tasks[self.task]
        self.input = self.plan.inputs[unit.input]
        self.rows = self._open(unit.first, unit.last)

    def _open(self, first: int, last: int) -> Rows:
        found = Found(self.input.source, self.place.locations[self.plan.tasks[self.task].input], self.input.kind)
        return open_rows(found, first, last, self.plan.settings.reading, self.place.open_cache())

    def __iter__(self) -> Iterator[list[Document]]:
        for batch in _batches(self._clean()):
            if self.evaluation is not None:
                bad = contaminated([document.text for document in batch], self.evaluation)
                self.left_out["contaminated"] += int(bad.sum())
                batch = [document for document, out in zip(batch, bad, strict=True) if not out]
            if batch:
                yield batch

    def reject(self, line: int, reason: str) -> None:
        """Count and list a row that cannot be used. Raises UserError in a strict preparation."""
        if self.place.strict:
            before = self._open(0, self.plan.tasks[self.task].first)
            deque(before, maxlen=0)
            raise UserError(
                f"{self.input.name} line {before.lines + line}: {reason}; mend it, or prepare without --strict."
            )
        self.left_out["unreadable"] += 1
        if self.quarantine is not None:
            self.quarantine.write({"file": self.input.name, "line": line, "reason": reason})

    def _clean(self) -> Iterator[Document]:
        settings = self.plan.settings.cleaning
        for row in self.rows:
            if row.reason:
                self.reject(row.line, row.reason)
                continue
            text, reason = clean(row.text, settings)
            if reason or not text.strip():
                self.left_out[reason or "empty"] += 1
            else:
                yield Document(text, row.line, row.id)


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def quarantine_path(out: Path, task: int) -> Path:
    return out / "prep" / "quarantine" / f"{task:05d}.jsonl"
