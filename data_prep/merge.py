"""The last step of preparing data: the manifest that makes a folder of shards a data set."""

from collections.abc import Sequence
from pathlib import Path

from data_prep.errors import UserError
from data_prep.files import write_json
from data_prep.format import (
    FORMAT,
    FORMAT_VERSION,
    Manifest,
    ShardInfo,
    SourceInfo,
    TokenizerInfo,
    Totals,
    fingerprint,
    read_index,
    token_dtype,
)
from data_prep.plan import Plan
from data_prep.worker import TaskRecord


def write_manifest(
    folder: Path, tokenizer: TokenizerInfo, shards: Sequence[ShardInfo], sources: Sequence[SourceInfo]
) -> Manifest:
    """Write manifest.json for finished shards under `folder`/shards, and return it."""
    dtype = token_dtype(tokenizer.vocab_size)
    tables = (read_index((folder / "shards" / shard.index_name).read_bytes())[1] for shard in shards)
    manifest = Manifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        fingerprint=fingerprint(tokenizer.sha256, dtype, tables),
        tokenizer=tokenizer,
        dtype=dtype.name,
        totals=Totals(
            documents=sum(shard.documents for shard in shards),
            tokens=sum(shard.tokens for shard in shards),
            blocks=sum(shard.blocks for shard in shards),
        ),
        shards=list(shards),
        sources=list(sources),
    )
    write_json(folder / "manifest.json", manifest.to_json())
    return manifest


def merge(plan: Plan, records: Sequence[TaskRecord], out: Path) -> list[Manifest]:
    """Write the manifest of each split from the verified records of all tasks, in task order.

    Removes what interrupted writers left behind. Raises UserError if a split has no document.
    """
    for split in plan.splits:
        if not any(record.documents(split) for record in records):
            raise UserError(_nothing(plan, records, split))
    for temporary in out.rglob(".*.tmp"):
        temporary.unlink()
    return [
        write_manifest(
            out / split,
            plan.tokenizer,
            [shard for record in records for shard in record.shards[split]],
            _sources(plan, records, split),
        )
        for split in plan.splits
    ]


def _sources(plan: Plan, records: Sequence[TaskRecord], split: str) -> list[SourceInfo]:
    return [
        SourceInfo(
            name=source.name,
            bytes=source.bytes,
            source="",
            digest=source.sha256,
            first_task=record.task,
            tasks=1,
            documents=record.documents(split),
            tokens=sum(shard.tokens for shard in record.shards[split]),
            text_bytes=0,
            left_out={"empty": record.empty, "unreadable": record.quarantined},
        )
        for source, record in zip(plan.inputs, records, strict=True)
    ]


def _nothing(plan: Plan, records: Sequence[TaskRecord], split: str) -> str:
    if split == "valid" and any(record.documents("train") for record in records):
        return f"--valid-fraction {plan.settings.valid_fraction} takes no document of so small a corpus; raise it."
    if split == "train" and any(record.documents("valid") for record in records):
        return f"--valid-fraction {plan.settings.valid_fraction} leaves no document to train on; lower it."
    empty, quarantined = sum(r.empty for r in records), sum(r.quarantined for r in records)
    first = next((f", the first being {r.first_reason}" for r in records if r.first_reason), "")
    return f"The input has no document: {empty} are empty and {quarantined} unreadable{first}; check --text-field."
