"""One idempotent task: an input file to shards of its own, then a record of what was written."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import xxhash

from data_prep.encode import Encoder, choose_encoder
from data_prep.errors import UserError
from data_prep.files import atomic_writer, sha256_file, write_json
from data_prep.format import ShardInfo, token_dtype
from data_prep.plan import Plan
from data_prep.shards import ShardWriter
from data_prep.sources import Row, Source
from data_prep.tokenizer import describe, load

BATCH_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class TaskRecord:
    """OUT/prep/tasks/NNNNN.json. `shards` are by split; `note` says why a faster encoder was left out."""

    plan: str
    task: int
    shards: dict[str, list[ShardInfo]]
    empty: int
    quarantined: int
    quarantine_sha256: str | None
    first_reason: str
    encoder: str
    note: str

    def documents(self, split: str) -> int:
        return sum(shard.documents for shard in self.shards[split])


@dataclass(frozen=True)
class Progress:
    """Running totals of one task: bytes read of its file, bytes of text in them, documents and tokens written."""

    file_bytes: int = 0
    text_bytes: int = 0
    documents: int = 0
    tokens: int = 0


def record_path(out: Path, task: int) -> Path:
    return out / "prep" / "tasks" / f"{task:05d}.json"


def quarantine_path(out: Path, task: int) -> Path:
    return out / "quarantine" / f"{task:05d}.jsonl"


def verified_record(plan: Plan, task: int, out: Path) -> TaskRecord | None:
    """The record of a finished task if it is of this plan and every file it lists has the bytes it lists."""
    try:
        raw = json.loads(record_path(out, task).read_bytes())
        shards = {split: [ShardInfo(**shard) for shard in raw["shards"][split]] for split in plan.splits}
        record = TaskRecord(**{**raw, "shards": shards})
        written = {out / s / "shards" / i.name: i.sha256 for s in plan.splits for i in shards[s]}
        written |= {out / s / "shards" / i.index_name: i.index_sha256 for s in plan.splits for i in shards[s]}
        if record.quarantine_sha256 is not None:
            written[quarantine_path(out, task)] = record.quarantine_sha256
        same = all(sha256_file(path) == digest for path, digest in written.items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if same and record.plan == plan.hash and record.task == task else None


def run_task(plan: Plan, task: int, path: Path, out: Path, report: Callable[[Progress], None]) -> TaskRecord:
    """Do a task, unless its verified record is there already; `path` is the task's input file.

    `report` is called after each batch; an exception that it raises stops the task. Raises UserError if the file or the
    tokenizer is not the plan's.
    """
    record = verified_record(plan, task, out)
    if record is None:
        record = _Task(plan, task, path, out).run(report)
        write_json(record_path(out, task), asdict(record))
    report(_finished(plan, task, record))
    return record


def _finished(plan: Plan, task: int, record: TaskRecord) -> Progress:
    shards = [shard for shards in record.shards.values() for shard in shards]
    size = plan.inputs[plan.tasks[task].input].bytes
    return Progress(size, 0, sum(shard.documents for shard in shards), sum(shard.tokens for shard in shards))


class _Task:
    def __init__(self, plan: Plan, task: int, path: Path, out: Path) -> None:
        self.plan, self.task, self.out = plan, task, out
        self.source = Source(path, plan.settings.text_field)
        self.input = plan.inputs[plan.tasks[task].input]
        self.empty = self.quarantined = self.documents = self.tokens = 0
        self.first_reason = ""
        tokenizer_path = out / plan.splits[0] / "tokenizer"
        if describe(tokenizer_path) != plan.tokenizer:
            raise UserError(f"The tokenizer in {tokenizer_path} has changed; delete {out} and prepare the data again.")
        self.tokenizer = load(tokenizer_path)
        self.forbidden = np.zeros(plan.tokenizer.vocab_size, dtype=bool)
        self.forbidden[[id for name, id in plan.tokenizer.special_ids.items() if name != "unk"]] = True

    def run(self, report: Callable[[Progress], None]) -> TaskRecord:
        if self.source.path.stat().st_size != self.input.bytes:
            raise UserError(f"{self.source.path} changed while it was read; run the same command again.")
        settings, dtype = self.plan.settings, token_dtype(self.plan.tokenizer.vocab_size)
        encoder: Encoder | None = None
        note = ""
        with contextlib.ExitStack() as stack:
            quarantine = stack.enter_context(_Quarantine(quarantine_path(self.out, self.task)))
            writers = {
                split: stack.enter_context(
                    ShardWriter(
                        self.out / split / "shards", self.task, dtype, settings.block_tokens, settings.shard_bytes
                    )
                )
                for split in self.plan.splits
            }
            for rows in _batches(self._readable(quarantine)):
                if encoder is None:
                    encoder, note = choose_encoder(self.tokenizer, self.plan.tokenizer, [row.text for row in rows])
                self._write(rows, encoder, writers, quarantine)
                report(Progress(self.source.bytes_read, self.source.text_bytes, self.documents, self.tokens))
        return TaskRecord(
            plan=self.plan.hash,
            task=self.task,
            shards={split: writer.shards for split, writer in writers.items()},
            empty=self.empty,
            quarantined=self.quarantined,
            quarantine_sha256=sha256_file(quarantine.path) if self.quarantined else None,
            first_reason=self.first_reason,
            encoder=encoder.name if encoder else "none",
            note=note,
        )

    def _readable(self, quarantine: "_Quarantine") -> Iterator[Row]:
        for row in self.source:
            if row.reason:
                self._reject(quarantine, row.line, row.reason)
            elif row.text.strip():
                yield row
            else:
                self.empty += 1

    def _reject(self, quarantine: "_Quarantine", line: int, reason: str) -> None:
        quarantine.write({"file": self.input.name, "line": line, "reason": reason})
        self.first_reason = self.first_reason or f"{self.input.name} line {line}: {reason}"
        self.quarantined += 1

    def _write(
        self, rows: list[Row], encoder: Encoder, writers: dict[str, ShardWriter], quarantine: "_Quarantine"
    ) -> None:
        ids, lengths, words = encoder([row.text for row in rows])
        self.empty += int((lengths == 0).sum())
        bad = self._with_special_ids(ids, lengths)
        for index in np.flatnonzero(bad):
            reason = "the text spells a special token, and the tokenizer cannot encode it as text"
            self._reject(quarantine, rows[index].line, reason)
        for split, chosen in self._split(rows).items():
            keep = chosen & ~bad & (lengths > 0)
            mask = np.repeat(keep, lengths)
            writers[split].add(ids[mask], lengths[keep], words[mask] if words is not None else None)
            self.documents += int(keep.sum())
            self.tokens += int(lengths[keep].sum())

    def _with_special_ids(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Documents with a pad, cls, sep or mask id, bool [n_documents]."""
        documents = np.repeat(np.arange(len(lengths)), lengths)
        return np.bincount(documents[self.forbidden[ids]], minlength=len(lengths)) > 0

    def _split(self, rows: list[Row]) -> dict[str, np.ndarray]:
        """By a hash of the text, so that copies of a document never fall on both sides."""
        if not self.plan.settings.valid_fraction:
            return {".": np.ones(len(rows), dtype=bool)}
        hashes = [xxhash.xxh3_64_intdigest(row.text.encode()) for row in rows]
        valid = np.array(hashes, dtype=np.uint64) / 2.0**64 < self.plan.settings.valid_fraction
        return {"train": ~valid, "valid": valid}


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    characters = 0
    for row in rows:
        batch.append(row)
        characters += len(row.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class _Quarantine(contextlib.ExitStack):
    """A file of JSON lines that exists only if there is a line."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._file: Any = None

    def write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            self.path.parent.mkdir(exist_ok=True)
            self._file = self.enter_context(atomic_writer(self.path))
        self._file.write(orjson.dumps(line) + b"\n")
