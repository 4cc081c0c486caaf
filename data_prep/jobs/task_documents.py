"""The documents of one task: read and clean them, count dropped documents, and list unreadable rows."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import xxhash
from tokenizers import Tokenizer

from data_prep.cleaning import Cleaning, Grams
from data_prep.common.errors import UserError
from data_prep.common.files import atomic_writer, make_folder, sha256_file
from data_prep.common.urls import redact, shown
from data_prep.format import TokenizerInfo
from data_prep.jobs.plan_inputs import read_group
from data_prep.jobs.preparation_plan import (
    InputLocations,
    PreparationPlan,
    evaluation_path,
    locations_path,
    read_locations,
    read_plan,
)
from data_prep.sources import GroupedFile, GroupReader, RowReader, SourceInput, SourceRow, examine_unchanged
from data_prep.storage import Cache
from data_prep.tokenizer import Encoders, load

_SAMPLES, _SAMPLE_CHARACTERS = 3, 200
BATCH_CHARACTERS = 1 << 22  # smaller batches are slower: with 1 MB, a task took 9% longer


@dataclass(frozen=True)
class Unreadable:
    """A row that cannot be read: its file, its line counted from the start of the task, the reason, and its bytes."""

    file: str
    line: int
    reason: str
    bytes: int = 0


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


def quarantine_path(out: Path, task: int) -> Path:
    return out / "prep" / "quarantine" / f"{task:05d}.jsonl"


def sample(texts: Iterable[str]) -> list[str]:
    """The starts of a few texts, chosen by hash: of samples of parts, this is the sample of the whole."""
    starts = {text[:_SAMPLE_CHARACTERS] for text in texts}
    return sorted(starts, key=lambda start: xxhash.xxh3_64_intdigest(start.encode()))[:_SAMPLES]


class PreparationContext:
    """Plan, locations, tokenizer, encoders, filters and evaluation n-grams of OUT. A process loads each of them once.

    `filters` are those that the user has named: see Cleaning.check_named. `trusted`: OUT may name any addresses and
    cache folder, not only those that the user has named in `prep run`.
    """

    def __init__(self, out: Path, filters: Sequence[str] = (), trusted: bool = False) -> None:
        self.out, self._named, self._trusted = out, filters, trusted
        self.plan: PreparationPlan = read_plan(out)
        self.locations: InputLocations = read_locations(out)
        if (named := len(self.locations.locations)) != (planned := len(self.plan.inputs)):
            again = "Run `maskwright prep run --plan-only` again"
            raise UserError(f"{locations_path(out)} names {named:,} of the {planned:,} inputs of the plan. {again}.")

    cache = cached_property(lambda self: Cache(self.locations.cache, self.locations.cache_bytes))
    _known = cached_property(lambda self: os.path.exists(self.cache.record_of(self.locations.locations)))

    def input(self, number: int) -> tuple[SourceInput, list[GroupedFile]]:
        """An input of the plan, and the files of a group. Raises UserError for an address that needs trust."""
        given = self.plan.inputs[number]
        source = SourceInput(given.source, self.locations.locations[number], given.kind)
        files = read_group(self.out, given) if given.files > 1 else []
        names = [file.location for file in files]
        remote = next((name for name in names or [source.location] if given.kind == "hub" or "://" in name), None)
        if remote and not (self._trusted or (os.path.exists(self.cache.record_of(names)) if files else self._known)):
            known = f"{redact(shown(remote))} and the cache folder {self.cache.folder} are known from {self.out} alone"
            raise UserError(f"{known}. Add --yes to read it with your credentials.")
        return source, files

    @property
    def _tokenizer_path(self) -> Path:
        return self.out / self.plan.splits[0] / "tokenizer"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        path = self._tokenizer_path
        if TokenizerInfo.digest(path, self.plan.tokenizer.files) != self.plan.tokenizer.sha256:
            raise UserError(f"The tokenizer in {path} has changed; delete {self.out} and prepare the data again.")
        return load(path)

    @cached_property
    def encoders(self) -> Encoders:
        return Encoders(self.tokenizer, self.plan.tokenizer)

    @cached_property
    def cleaning(self) -> Cleaning:
        cleaning = self.plan.settings.cleaning
        cleaning.check_named(self._named)
        return cleaning

    @cached_property
    def begins_word(self) -> np.ndarray | None:
        """Whether each id begins a word, bool [vocab_size]; None if the vocabulary alone does not determine it."""
        info = self.plan.tokenizer
        if info.continuation_prefix is None:
            return None
        return info.begins_word((self._tokenizer_path / "tokenizer.json").read_bytes())

    @cached_property
    def evaluation(self) -> Grams | None:
        """The n-grams that documents must not contain."""
        if self.plan.settings.evaluation_sha256 is None:
            return None
        path = evaluation_path(self.out)
        if not path.is_file() or sha256_file(path) != self.plan.settings.evaluation_sha256:
            raise UserError(f"{path} is missing or damaged; run the same `maskwright prep` command again.")
        return Grams.load(path)

    @cached_property
    def forbidden(self) -> np.ndarray:
        """Mask of the ids that no document may contain, bool [vocab_size]."""
        info = self.plan.tokenizer
        forbidden = np.zeros(info.vocab_size, dtype=bool)
        forbidden[[id for name, id in info.special_ids.items() if name != "unk"]] = True
        return forbidden


class TaskDocuments:
    """Batches of a task's documents, in order. Iteration counts dropped documents in `left_out`, by reason.

    `samples` has a few of their texts, by reason. `changed` counts documents whose text a filter changed.
    `unreadable_bytes` is the size of the unreadable ones in the input.

    Every stage that reads a task gets the same documents in the same order, so an index identifies a document.
    Raises UserError if the input has changed since it was planned.
    """

    def __init__(self, context: PreparationContext, task: int, quarantine: Quarantine | None = None) -> None:
        self._settings, unit = context.plan.settings, context.plan.tasks[task]
        self._cleaning, self._evaluation, self._quarantine = context.cleaning, context.evaluation, quarantine
        self._input, options, cache = context.plan.inputs[unit.input], self._settings.reading, context.cache
        source, files = context.input(unit.input)
        self.left_out: Counter[str] = Counter()
        self.samples: dict[str, list[str]] = {}
        self.changed = self.unreadable_bytes = 0
        if files:
            self.rows: GroupReader | RowReader = GroupReader(source, files, options, cache)
            return
        if source.kind != "hub":
            examine_unchanged(source, self._input.digest, cache, options)
        self.rows = RowReader(source, unit.first, unit.last, options, cache)

    def __iter__(self) -> Iterator[list[SourceRow]]:
        batch: list[SourceRow] = []
        characters = 0
        for row in self.rows:
            if row.reason:
                self.reject(row.line, row.reason, row.bytes)
            elif not row.text or row.text.isspace():
                self.left_out["empty"] += 1
            else:
                batch.append(row)
                characters += len(row.text)
                if characters >= BATCH_CHARACTERS:
                    yield self._cleaned(batch)
                    batch, characters = [], 0
        if batch:
            yield self._cleaned(batch)

    def _cleaned(self, batch: list[SourceRow]) -> list[SourceRow]:
        cleaning = self._cleaning
        if cleaning == Cleaning() and self._evaluation is None:
            return batch
        texts, reasons = cleaning.clean([row.text for row in batch])
        if self._evaluation is not None:
            bad = self._evaluation.occur_in(texts)
            reasons = [reason or "contaminated" * bool(out) for reason, out in zip(reasons, bad, strict=True)]
        others = (row.other if row.other is None else cleaning.normalized(row.other) for row in batch)
        rows = [row._replace(text=text, other=other) for row, text, other in zip(batch, texts, others, strict=True)]
        stays = self.leave_out(rows, reasons)
        if cleaning.filters:
            whole = (cleaning.normalized(row.text) for row, reason in zip(batch, reasons, strict=True) if not reason)
            self.changed += sum(row.text != text for row, text in zip(stays, whole, strict=True))
        return stays

    def leave_out(self, rows: list[SourceRow], reasons: Sequence[str]) -> list[SourceRow]:
        """The rows without a reason. Counts the others, and samples their texts."""
        self.left_out.update(filter(None, reasons))
        for name in set(reasons) - {""}:
            dropped = [row.text for row, reason in zip(rows, reasons, strict=True) if reason == name]
            self.samples[name] = sample([*self.samples.get(name, []), *dropped])
        return [row for row, reason in zip(rows, reasons, strict=True) if not reason]

    def reject(self, line: int, reason: str, size: int) -> None:
        """Count and list a row that cannot be used."""
        self.left_out["unreadable"] += 1
        self.unreadable_bytes += size
        if self._quarantine is not None:
            file, line = self.rows.origin(line)
            self._quarantine.write(Unreadable(file or self._input.name, line, reason, size))
