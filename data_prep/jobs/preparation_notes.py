"""Notes for the user on a prepared data set: pure functions of the plan and the tasks' records."""

import shlex
from collections.abc import Sequence

from data_prep.jobs.preparation_plan import Input, PreparationPlan
from data_prep.jobs.task_worker import SHORT_TOKENS, TaskRecord

SHORT_SHARE = 0.25  # warn if at least this share of the documents is short
_SHARDS = 8  # the advice on more shards aims at this many: enough for the workers of a usual DataLoader
_SPLITS = {"blank": "split at empty lines", "line": "one document a line", "file": "one document a file"}


def notes_of(plan: PreparationPlan, records: Sequence[TaskRecord]) -> list[str]:
    """Notes on skipped fast encoders, on the splitting of text files, on short documents, and on a single shard."""
    return [*encoder_notes(records), *_split_notes(plan, records), *_shard_notes(plan, records)]


def encoder_notes(records: Sequence[TaskRecord]) -> list[str]:
    """The reasons for which tasks did not use a faster encoder."""
    return sorted({record.note for record in records if record.note})


def _split_notes(plan: PreparationPlan, records: Sequence[TaskRecord]) -> list[str]:
    texts: list[Input] = []
    documents = short = 0
    for given, tasks in zip(plan.inputs, plan.tasks_of_inputs(), strict=True):
        if given.kind == "txt":
            done = [records[task] for task in tasks]
            texts.append(given)
            documents += sum(record.documents(split) for record in done for split in plan.splits)
            short += sum(record.short_documents for record in done)
    if not texts:
        return []
    separator = plan.settings.reading.separator
    name = texts[0].name if len(texts) == 1 else f"{len(texts):,} text files"
    how = _SPLITS.get(separator, "split at lines of this text")
    notes = [f"{name}: {_count(documents)}, {how} (--separator {shlex.quote(separator)})"]
    if separator != "file" and documents and short >= SHORT_SHARE * documents:
        notes.append(
            f"warning: {short:,} of {_count(documents)} have fewer than {SHORT_TOKENS} tokens. If each file is one "
            "text, prepare again with --separator file and another --out."
        )
    return notes


def _shard_notes(plan: PreparationPlan, records: Sequence[TaskRecord]) -> list[str]:
    split = plan.splits[0]
    if sum(len(record.shards[split]) for record in records) != 1:
        return []
    size = sum(one.bytes for one in plan.inputs)
    if any(task.last - task.first > 1 for task in plan.tasks):
        advice = f"prepare again with --task-mb {max(0.001, size / _SHARDS / 1e6):.2g} and another --out"
    else:
        advice = "split the input into several files and prepare again with another --out"
    return [
        "note: the data set has one shard. `maskwright train` needs no more; a DataLoader of the webdataset package "
        f"needs one for each worker. For more shards, {advice}."
    ]


def _count(documents: int) -> str:
    return f"{documents:,} document{'' if documents == 1 else 's'}"
