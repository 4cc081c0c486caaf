"""One idempotent task: turn a range of an input into shards, then write a record of them."""

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from data_prep.common.files import sha256_file, write_json
from data_prep.common.reading import json_or_none
from data_prep.format import ShardInfo, ShardWriter
from data_prep.jobs import deduplication
from data_prep.jobs.preparation_plan import PreparationPlan
from data_prep.jobs.task_documents import PreparationContext, Quarantine, TaskDocuments, Unreadable, quarantine_path
from data_prep.jobs.task_progress import TaskProgress, TaskReport
from data_prep.sources import SourceRow
from data_prep.tokenizer import Arrays, targets_of

SHORT_TOKENS = 20
# Reasons for leaving out a document without targets, and a pair that does not fit in a row.
UNCHANGED, LONG_PAIR = "unchanged", "long pair"


@dataclass(frozen=True)
class TaskRecord:
    """The record of a finished task, OUT/prep/tasks/NNNNN.json.

    `shards` and `text_bytes` are by split. `lines` counts the lines of the task's range. `drop_sha256`
    identifies the list of dropped duplicates. `note` is the reason for not using a faster encoder. `short_documents`
    counts documents of fewer than SHORT_TOKENS tokens. `unreadable_bytes` is the size of unreadable rows in the input.
    `samples` and `changed` are described in TaskDocuments. `cut_documents` counts the documents over the limit that
    were cut into several.
    """

    hash: str
    task: int
    lines: int
    shards: dict[str, list[ShardInfo]]
    text_bytes: dict[str, int]
    left_out: dict[str, int]
    quarantine_sha256: str | None
    first_unreadable: Unreadable | None
    drop_sha256: str | None
    encoder: str
    note: str
    short_documents: int
    unreadable_bytes: int
    samples: dict[str, list[str]] = field(default_factory=dict)
    changed: int = 0
    cut_documents: int = 0
    words: dict[str, int] = field(default_factory=dict)  # counted by earlier versions, and not used

    def documents(self, split: str) -> int:
        return sum(shard.documents for shard in self.shards[split])

    def tokens(self, split: str) -> int:
        return sum(shard.tokens for shard in self.shards[split])


def record_path(out: Path, task: int) -> Path:
    return out / "prep" / "tasks" / f"{task:05d}.json"


def read_record(plan: PreparationPlan, task: int, out: Path) -> TaskRecord | None:
    """The record of a task if it matches the plan and the dropped duplicates, else None. Its files are not read."""
    record: TaskRecord | None = json_or_none(record_path(out, task), TaskRecord)
    if record is None or not record.shards.keys() == record.text_bytes.keys() == {*plan.splits}:
        return None
    if not all(shard.has_valid_name for shards in record.shards.values() for shard in shards):
        return None
    wanted = (task, plan.task_hash(task), deduplication.drop_sha256(plan, task, out))
    return record if (record.task, record.hash, record.drop_sha256) == wanted else None


def verified_record(context: PreparationContext, task: int, report: TaskReport | None = None) -> TaskRecord | None:
    """The record of a finished task, else None. If a file of the task is damaged, its record is deleted."""
    record = read_record(context.plan, task, context.out)
    if record is None:
        return None
    written = {}
    for split, shards in record.shards.items():
        for shard in shards:
            written[context.out / split / "shards" / shard.name] = shard.sha256
            written[context.out / split / "shards" / shard.index_name] = shard.index_sha256
    if record.quarantine_sha256 is not None:
        written[quarantine_path(context.out, task)] = record.quarantine_sha256
    try:
        sound = all(sha256_file(path) == digest for path, digest in written.items())
    except OSError:
        sound = False
    if not sound:
        record_path(context.out, task).unlink(missing_ok=True)
    return record if sound else None


def run_task(context: PreparationContext, task: int, report: TaskReport) -> TaskRecord:
    """Run a task and return its record. A task that is finished already is not run again.

    Calls `report` after each batch; if it raises, the task stops. Raises UserError if an input or the tokenizer differs
    from the plan.
    """
    record = verified_record(context, task)
    text_bytes = 0
    if record is None:
        with Quarantine(quarantine_path(context.out, task)) as quarantine:
            work = _Task(context, task, quarantine)
            record = work.run(report)
        text_bytes = work.documents.rows.text_bytes
        if quarantine.first is not None:
            record = replace(record, quarantine_sha256=sha256_file(quarantine.path))
        write_json(record_path(context.out, task), asdict(record))
    documents, tokens = (sum(map(count, context.plan.splits)) for count in (record.documents, record.tokens))
    report(TaskProgress(context.plan.tasks[task].bytes, text_bytes, documents, tokens))
    return record


class _Task:
    def __init__(self, context: PreparationContext, task: int, quarantine: Quarantine) -> None:
        self.context, self.plan, self.task = context, context.plan, task
        self.quarantine = quarantine
        self.documents = TaskDocuments(context, task, quarantine)
        self.drop = deduplication.Drop(self.plan, task, context.out)
        self.text_bytes = dict.fromkeys(self.plan.splits, 0)
        self.documents_written = self.tokens = self.short = 0

    def run(self, report: TaskReport) -> TaskRecord:
        encoder = None
        note = ""
        with contextlib.ExitStack() as stack:
            writers = {split: stack.enter_context(self._writer(split)) for split in self.plan.splits}
            for batch in self.documents:
                batch = self.documents.leave_out(batch, self.drop.reasons(len(batch)))
                if not batch:
                    continue
                if encoder is None:
                    encoder, note = self.context.encoders.choose([text for row in batch for text in row.texts])
                self._write(batch, encoder, writers)
                rows = self.documents.rows
                report(TaskProgress(rows.bytes_read, rows.text_bytes, self.documents_written, self.tokens))
        return TaskRecord(
            hash=self.plan.task_hash(self.task),
            task=self.task,
            lines=self.documents.rows.lines,
            shards={split: writer.shards for split, writer in writers.items()},
            text_bytes=self.text_bytes,
            left_out={reason: count for reason, count in sorted(self.documents.left_out.items()) if count},
            quarantine_sha256=None,
            first_unreadable=self.quarantine.first,
            drop_sha256=self.drop.sha256,
            encoder=encoder.name if encoder else "none",
            note=note,
            short_documents=self.short,
            unreadable_bytes=self.documents.unreadable_bytes,
            samples=dict(sorted(self.documents.samples.items())),
            changed=self.documents.changed,
            cut_documents=self.documents.rows.cut_documents,
        )

    def _writer(self, split: str) -> ShardWriter:
        settings, dtype = self.plan.settings, self.plan.tokenizer.dtype
        folder = self.context.out / split / "shards"
        return ShardWriter(folder, self.task, dtype, settings.block_tokens, settings.shard_bytes, settings.corrects)

    def _write(
        self, batch: list[SourceRow], encode: Callable[[list[str]], Any], writers: dict[str, ShardWriter]
    ) -> None:
        corrects, targets = self.plan.settings.corrects, None
        if batch[0].other is None or corrects:
            ids, lengths, words = encode([row.text for row in batch])
            usable = self._usable(batch, ids, lengths)
        else:
            (ids, lengths, words), usable = self._joined(batch, encode)
        if corrects:
            wrong = encode([row.other or "" for row in batch])
            targets = targets_of((ids, lengths, words), wrong, self.context.begins_word)
            changed = np.add.reduceat(np.append(targets, False), np.cumsum(lengths) - lengths, dtype=int) > 0
            self.documents.left_out[UNCHANGED] += int((usable & ~changed).sum())
            usable &= changed
        sides = 1 if corrects or batch[0].other is None else 2
        sizes = np.array([sum(map(_utf8_bytes, row.texts[:sides])) for row in batch], np.int64)
        names: list[Any] | None = [row.id for row in batch] if self.plan.settings.reading.id_field is not None else None
        for split, chosen in self._split(batch).items():
            chosen = chosen & usable
            self.text_bytes[split] += int(sizes[chosen].sum())
            self.documents_written += int(chosen.sum())
            self.tokens += int(lengths[chosen].sum())
            self.short += int((lengths[chosen] < SHORT_TOKENS).sum())
            if chosen.all():  # no copies
                writers[split].add(ids, lengths, words, names, targets)
                continue
            tokens = np.repeat(chosen, lengths)
            some = names and [name for name, stays in zip(names, chosen, strict=True) if stays]
            writers[split].add(ids[tokens], lengths[chosen], _at(words, tokens), some, _at(targets, tokens))

    def _joined(self, batch: list[SourceRow], encode: Callable[[list[str]], Arrays]) -> tuple[Arrays, np.ndarray]:
        """Each text, [SEP] and its translation as one document, and a mask of the usable ones, bool [n_documents].

        Counts documents that lack a side or are too long: a row would cut them, and separate source and target.
        """
        ids, lengths, words = encode([text for row in batch for text in row.texts])
        sides, ends = lengths.reshape(-1, 2), np.cumsum(lengths)[::2]
        usable = self._usable(batch, ids, sides.sum(axis=1))
        joined = sides.sum(axis=1) + 1
        for reason, bad in (("empty", ~sides.all(axis=1)), (LONG_PAIR, joined > self.plan.settings.max_pair_tokens)):
            self.documents.left_out[reason] += int((usable & bad).sum())
            usable &= ~bad
        sep = self.plan.tokenizer.special_ids["sep"]
        return (np.insert(ids, ends, sep), joined, None if words is None else np.insert(words, ends, True)), usable

    def _usable(self, batch: list[SourceRow], ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Mask of documents with tokens and without pad, cls, sep or mask ids, bool [n_documents]. Counts the rest."""
        usable = lengths > 0
        self.documents.left_out["empty"] += int((~usable).sum())
        bad = np.flatnonzero(self.context.forbidden[ids])
        if len(bad):
            special = np.unique(np.searchsorted(np.cumsum(lengths), bad, side="right"))
            for index in special:
                reason = "the text spells a special token, and the tokenizer cannot encode it as text"
                size = self.documents.rows.stored(len(batch[index].text.encode()))
                self.documents.reject(batch[index].line, reason, size)
            usable[special] = False
        return usable

    def _split(self, batch: list[SourceRow]) -> dict[str, np.ndarray]:
        """Split by a hash of the text, so that copies of a document are always in the same split."""
        if not self.plan.settings.valid_fraction:
            return {".": np.ones(len(batch), dtype=bool)}
        hashes = np.array([xxhash.xxh3_64_intdigest(row.text.encode()) for row in batch], dtype=np.uint64)
        valid = hashes / 2.0**64 < self.plan.settings.valid_fraction
        return {"train": ~valid, "valid": valid}


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _at(values: np.ndarray | None, mask: np.ndarray) -> np.ndarray | None:
    return None if values is None else values[mask]
