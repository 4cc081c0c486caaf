"""Merge of finished tasks: write the manifest that turns a folder of shards into a data set."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import orjson

from data_prep.errors import UserError
from data_prep.files import atomic_writer, is_abandoned, write_json
from data_prep.format import Manifest, ShardInfo, SourceInfo, TokenizerInfo
from data_prep.format.shard_format import (
    FORMAT,
    FORMAT_VERSION,
    DataSetTotals,
    fingerprint,
    index_fingerprint,
    read_index,
    token_dtype,
)
from data_prep.jobs.preparation_plan import PreparationPlan
from data_prep.jobs.task_documents import Unreadable, quarantine_path
from data_prep.jobs.task_worker import TaskRecord
from data_prep.reading import open_regular, parse_json, unusable


class NoDocuments(UserError):
    """The data set would have no documents."""


def write_manifest(
    folder: Path,
    tokenizer: TokenizerInfo,
    shards: Sequence[ShardInfo],
    sources: Sequence[SourceInfo],
    version: int = FORMAT_VERSION,
) -> Manifest:
    """Write and return manifest.json for the finished shards in `folder`/shards, which have format `version`."""
    dtype = token_dtype(tokenizer.vocab_size)
    tables = (read_index((folder / "shards" / shard.index_name).read_bytes())[1] for shard in shards)
    manifest = Manifest(
        format=FORMAT,
        format_version=version,
        fingerprint=fingerprint(tokenizer.sha256, dtype, tables, version),
        tokenizer=tokenizer,
        dtype=dtype.name,
        totals=DataSetTotals(
            documents=sum(shard.documents for shard in shards),
            tokens=sum(shard.tokens for shard in shards),
            blocks=sum(shard.blocks for shard in shards),
        ),
        shards=list(shards),
        sources=list(sources),
        index_fingerprint=index_fingerprint(shards),
    )
    write_json(folder / "manifest.json", asdict(manifest))
    return manifest


def merge(plan: PreparationPlan, records: Sequence[TaskRecord], out: Path) -> list[Manifest]:
    """Write the manifest of each split from the verified records of all tasks, in task order.

    Also collects the tasks' unreadable rows in OUT/quarantine.jsonl and removes temporary files of interrupted
    writers. Raises NoDocuments if a split has no documents.
    """
    for split in plan.splits:
        if not any(record.documents(split) for record in records):
            raise NoDocuments(_nothing(plan, records, split))
    written = [out, out / "prep", *(out / split / "tokenizer" for split in plan.splits)]
    written += [out / "prep" / name for name in ("tasks", "scan", "drop", "ids", "quarantine", "tokenizer")]
    written += [out / split / name for split in plan.splits for name in ("", "shards")]
    for temporary in (path for folder in set(written) for path in folder.glob(".*.tmp")):
        if is_abandoned(temporary):
            temporary.unlink(missing_ok=True)
    _gather_quarantine(plan, records, out)
    return [
        write_manifest(
            out / split,
            plan.tokenizer,
            [shard for record in records for shard in record.shards[split]],
            _sources(plan, records, split),
            plan.settings.data_version,
        )
        for split in plan.splits
    ]


def _sources(plan: PreparationPlan, records: Sequence[TaskRecord], split: str) -> list[SourceInfo]:
    sources = []
    for given, tasks in zip(plan.inputs, plan.tasks_of_inputs(), strict=True):
        done = [records[task] for task in tasks]
        left_out: Counter[str] = Counter()
        for record in done:
            left_out.update(record.left_out)
        sources.append(
            SourceInfo(
                name=given.name,
                source=given.source,
                bytes=given.bytes,
                digest=given.digest,
                first_task=tasks.start,
                tasks=len(tasks),
                documents=sum(record.documents(split) for record in done),
                tokens=sum(record.tokens(split) for record in done),
                text_bytes=sum(record.text_bytes[split] for record in done),
                left_out=dict(sorted(left_out.items())),
            )
        )
    return sources


def _gather_quarantine(plan: PreparationPlan, records: Sequence[TaskRecord], out: Path) -> None:
    """Write all unreadable rows to one file, with line numbers counted from the start of each input."""
    path = out / "quarantine.jsonl"
    if all(record.quarantine_sha256 is None for record in records):
        path.unlink(missing_ok=True)
        return
    with atomic_writer(path) as file:
        for row in _quarantined(plan, records, out):
            file.write(orjson.dumps(row) + b"\n")


def _quarantined(plan: PreparationPlan, records: Sequence[TaskRecord], out: Path) -> Iterator[Unreadable]:
    for tasks in plan.tasks_of_inputs():
        lines = 0
        for task in tasks:
            if records[task].quarantine_sha256 is not None:
                path = quarantine_path(out, task)
                with open_regular(path) as rows:
                    for row in rows:
                        yield _moved(path, row, lines)
            lines += records[task].lines


def _moved(path: Path, row: bytes, lines: int) -> Unreadable:
    """Parse a row of a quarantine file and add `lines` to its line number."""
    try:
        unreadable: Unreadable = parse_json(row, Unreadable)
        return replace(unreadable, line=unreadable.line + lines)
    except ValueError:
        raise unusable(path, "it is not a list of unreadable rows", "run the same command again") from None


def _nothing(plan: PreparationPlan, records: Sequence[TaskRecord], split: str) -> str:
    if split == "valid" and any(record.documents("train") for record in records):
        return f"--valid-fraction {plan.settings.valid_fraction} takes no document of so small a corpus; raise it."
    if split == "train" and any(record.documents("valid") for record in records):
        return f"--valid-fraction {plan.settings.valid_fraction} leaves no document to train on; lower it."
    left_out: Counter[str] = Counter()
    for record in records:
        left_out.update(record.left_out)
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items())) or "nothing was read"
    row = next((record.first_unreadable for record in records if record.first_unreadable), None)
    first = f"; the first unreadable row is {row.file} line {row.line}: {row.reason}" if row else ""
    names = f"{plan.inputs[0].name}{' and others' if plan.inputs[1:] else ''}" if plan.inputs else "The input"
    return f"{names}: no document to keep ({counts}){first}. Check --input and --text-field."
