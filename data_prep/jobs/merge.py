"""Merge of finished tasks: write the manifest that turns a folder of shards into a data set."""

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from data_prep.common.errors import UserError
from data_prep.common.files import atomic_writer, is_abandoned, write_json
from data_prep.common.reading import open_regular, parse_json, unusable
from data_prep.format import Dataset, Manifest, SourceInfo
from data_prep.jobs.preparation_plan import PreparationPlan, read_locations
from data_prep.jobs.task_documents import Unreadable, quarantine_path, sample
from data_prep.jobs.task_worker import SHORT_TOKENS, TaskRecord
from data_prep.sources import MAX_DOCUMENT_BYTES

SHORT_SHARE = 0.25  # warn if at least this share of the documents is short


class NoDocuments(UserError):
    """The data set would have no documents."""


@dataclass(frozen=True)
class Prepared:
    """Result of a preparation: manifests by folder, notes for the user, number of tasks that this call did.

    `left_out_bytes` is the size of what could not be read. If that is more than the preparation allows, `problem` says
    so: the data set is whole, but lacks a part of the input.
    """

    manifests: dict[Path, Manifest]
    notes: list[str]
    left_out_bytes: int = 0
    problem: str = ""
    new_tasks: int = 0


def merge(plan: PreparationPlan, records: Sequence[TaskRecord], out: Path) -> Prepared:
    """Write the manifest of each split from the verified records of all tasks.

    Also collects the tasks' unreadable rows in OUT/quarantine.jsonl and removes temporary files of interrupted
    writers. Raises NoDocuments if a split has no documents.
    """
    for split in plan.splits:
        if not any(record.documents(split) for record in records):
            raise NoDocuments(_no_documents(plan, records, split))
    folders = {out, out / "prep", *(out / split for split in plan.splits)}
    for temporary in (path for folder in folders for form in (".*.tmp", "*/.*.tmp") for path in folder.glob(form)):
        if temporary.is_file() and is_abandoned(temporary):
            temporary.unlink(missing_ok=True)
    _gather_quarantine(plan, records, out)
    reasons = sorted({reason for record in records for reason in record.samples})
    samples = {name: sample(text for record in records for text in record.samples.get(name, [])) for name in reasons}
    for split in plan.splits:
        write_json(out / split / Dataset.SAMPLES, samples)
    manifests = {
        out / split: Manifest.write(
            out / split,
            plan.tokenizer,
            [shard for record in records for shard in record.shards[split]],
            _sources(plan, records, split),
            plan.settings.corrects,
        )
        for split in plan.splits
    }
    notes = [*encoder_notes(records), *_split_notes(plan, records)]
    if changed := sum(record.changed for record in records):
        notes.append(f"filters changed the text of {changed:,} documents that they kept")
    if cut := sum(record.cut_documents for record in records):
        limit = f"more than {MAX_DOCUMENT_BYTES >> 20} MiB"
        notes.append(f"{cut:,} document{' of ' if cut == 1 else 's of '}{limit} {'was' if cut == 1 else 'were'} cut.")
    return Prepared(manifests, notes, *_left_out_bytes(plan, records, out))


def _left_out_bytes(plan: PreparationPlan, records: Sequence[TaskRecord], out: Path) -> tuple[int, str]:
    """The bytes of the input that could not be read, and a message if they are more than allowed."""
    place = read_locations(out)
    of_files = sum(place.unread_files.values())
    left_out = sum(record.unreadable_bytes for record in records) + of_files
    total = sum(given.bytes for given in plan.inputs) + of_files
    share = min(1.0, left_out / max(1, total))
    if share <= place.allow_unreadable:
        return left_out, ""
    worst = max(place.unread_files, key=place.unread_files.__getitem__, default="")
    row = next((record.first_unreadable for record in records if record.unreadable_bytes), None)
    first = f"{row.file} line {row.line}: {row.reason}" if row else f"{worst} is not read"
    allow = math.ceil(1000 * share) / 1000
    message = (
        f"{share:.1%} of the bytes of the input were left out ({left_out:,} of {total:,}). The first: {first}. Correct "
        f"the input and choose another --out, or accept it with --allow-unreadable {allow:g}."
    )
    return left_out, message


def _no_documents(plan: PreparationPlan, records: Sequence[TaskRecord], split: str) -> str:
    if split == "valid" and any(record.documents("train") for record in records):
        return f"--valid-fraction {plan.settings.valid_fraction} takes no document of so small a corpus; raise it."
    if split == "train" and any(record.documents("valid") for record in records):
        return f"--valid-fraction {plan.settings.valid_fraction} leaves no document to train on; lower it."
    left_out = _left_out(records)
    counts = ", ".join(f"{n} {reason}" for reason, n in left_out.items()) or "nothing was read"
    row = next((record.first_unreadable for record in records if record.first_unreadable), None)
    first = f"; the first unreadable row is {row.file} line {row.line}: {row.reason}" if row else ""
    names = f"{plan.inputs[0].name}{' and others' if plan.inputs[1:] else ''}" if plan.inputs else "The input"
    filtered = set(left_out) - {"empty"} and not row
    options = "--input, --text-field and --id-field" if plan.settings.reading.id_field else "--input and --text-field"
    advice = "Change the options that leave them out" if filtered else f"Check {options}"
    return f"{names}: no document to keep ({counts}){first}. {advice}."


def _left_out(records: Sequence[TaskRecord]) -> dict[str, int]:
    return dict(sorted(sum((Counter(record.left_out) for record in records), Counter()).items()))


def _sources(plan: PreparationPlan, records: Sequence[TaskRecord], split: str) -> list[SourceInfo]:
    sources = []
    for given, tasks in zip(plan.inputs, plan.tasks_of_inputs(), strict=True):
        done = [records[task] for task in tasks]
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
                left_out=_left_out(done),
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
                    for text in rows:
                        try:
                            row: Unreadable = parse_json(text, Unreadable)
                        except ValueError:
                            reason = "it is not a list of unreadable rows"
                            raise unusable(path, reason, "run the same command again") from None
                        yield replace(row, line=row.line + lines)
            lines += records[task].lines


def encoder_notes(records: Sequence[TaskRecord]) -> list[str]:
    """Why tasks did not use a faster encoder."""
    return sorted({record.note for record in records if record.note})


def _split_notes(plan: PreparationPlan, records: Sequence[TaskRecord]) -> list[str]:
    """Notes on the split of text files into documents, with a warning if many of these are short."""
    texts = [given for given in plan.inputs if given.kind == "txt"]
    if not texts:
        return []
    done = [record for record, task in zip(records, plan.tasks, strict=True) if plan.inputs[task.input].kind == "txt"]
    documents = sum(record.documents(split) for record in done for split in plan.splits)
    short = sum(record.short_documents for record in done)
    separator = plan.settings.reading.separator
    files = sum(given.files for given in texts)
    name = texts[0].name if files == 1 else f"{files:,} text files"
    how = {"blank": "split at empty lines", "line": "one document a line", "file": "one document a file"}
    count = f"{documents:,} document{'' if documents == 1 else 's'}"
    split = how.get(separator, "split at lines of this text")
    notes = [f"{name}: {count}, {split} (--separator {shlex.quote(separator)})"]
    if separator != "file" and documents and short >= SHORT_SHARE * documents:
        notes.append(
            f"warning: {short:,} of {count} have fewer than {SHORT_TOKENS} tokens. If each file is one "
            "text, prepare again with --separator file and another --out."
        )
    return notes
