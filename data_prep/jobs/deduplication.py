"""Deduplication across all tasks: scan each task, then resolve in one process which documents each task drops.

OUT/prep/scan/NNNNN.json        written last: the task's hash, and the SHA-256 of the scan's arrays
OUT/prep/scan/NNNNN.exact.npy   a hash of each document; .near.npy: MinHash bands of each document
OUT/prep/drop/NNNNN.exact.npy   indices of the documents to drop; .near.npy likewise
OUT/prep/drop.json              written last: SHA-256 of the resolved scans and of the drop arrays

The earliest of equal documents stays. So inputs that are added later do not change the drops of earlier tasks.
"""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.cleaning import key_writer, read_drops, resolve_repeats
from data_prep.common.errors import DamagedData, UserError, one_line
from data_prep.common.files import sha256_file, write_json
from data_prep.common.reading import read_json, typed
from data_prep.jobs.preparation_plan import PreparationPlan
from data_prep.jobs.task_documents import PreparationContext, TaskDocuments
from data_prep.jobs.task_progress import TaskProgress, TaskReport

REASONS = {"exact": "duplicate", "near": "near duplicate"}


def duplicate_kinds(plan: PreparationPlan) -> list[str]:
    """The kinds of duplicates that the plan drops, in the order of their application."""
    return {"none": [], "exact": ["exact"], "near": ["exact", "near"]}[plan.settings.deduplicate]


def scan(context: PreparationContext, task: int, report: TaskReport) -> None:
    """Hash the documents of a task. Do nothing if a valid scan exists."""
    plan, out = context.plan, context.out
    _check_deduplicates(plan)
    if not scanned(plan, task, out):
        thresholds = {"exact": None, "near": plan.settings.near_threshold}
        documents = TaskDocuments(context, task)
        count = 0
        with contextlib.ExitStack() as stack:
            writers = [
                stack.enter_context(
                    key_writer(_array_path(out, "scan", task, kind), thresholds[kind], plan.settings.near_unit)
                )
                for kind in duplicate_kinds(plan)
            ]
            for batch in documents:
                texts = [row.text for row in batch]
                for write in writers:
                    write(texts)
                count += len(batch)
                report(TaskProgress(documents.rows.bytes_read, documents.rows.text_bytes, count))
        files = {kind: sha256_file(_array_path(out, "scan", task, kind)) for kind in duplicate_kinds(plan)}
        write_json(_record_path(out, task), {"hash": plan.task_hash(task), "files": files})
    report(TaskProgress(file_bytes=plan.tasks[task].bytes))


def _check_deduplicates(plan: PreparationPlan) -> None:
    if not duplicate_kinds(plan):
        raise UserError("The plan keeps duplicates, so there is nothing to scan or resolve; plan with --deduplicate.")


def recorded(plan: PreparationPlan, task: int, out: Path) -> bool:
    """Whether a task has a scan record. The scan's arrays are not read."""
    return _read(_record_path(out, task)).get("hash") == plan.task_hash(task)


def scanned(plan: PreparationPlan, task: int, out: Path) -> bool:
    """Whether the scan of a task exists and its arrays have the recorded checksums."""
    if not recorded(plan, task, out):
        return False
    files = _read(_record_path(out, task)).get("files", {})
    try:
        return all(
            sha256_file(_array_path(out, "scan", task, kind)) == files.get(kind) for kind in duplicate_kinds(plan)
        )
    except OSError:
        return False


def resolve(plan: PreparationPlan, out: Path, max_bytes: int = 512 << 20) -> int:
    """Compute from all scans which documents each task drops; return their number. Reuse a valid earlier result.

    A larger `max_bytes` needs fewer passes over the scans of a large corpus. The result is the same. Raises UserError
    if a scan is missing.
    """
    _check_deduplicates(plan)
    tasks = range(len(plan.tasks))
    missing = [task for task in tasks if not scanned(plan, task, out)]
    if missing:
        raise UserError(
            f"{len(missing)} tasks are not scanned, the first being {missing[0]}; run "
            f"`maskwright prep task {out} {missing[0]} --stage scan`."
        )
    if not resolved(plan, out):
        (out / "prep" / "drop").mkdir(exist_ok=True)
        for kind in duplicate_kinds(plan):
            scans, drops = ([_array_path(out, name, task, kind) for task in tasks] for name in ("scan", "drop"))
            resolve_repeats(scans, drops, kind == "near", max_bytes)
        write_json(out / "prep" / "drop.json", _digests(plan, out))
    return sum(len(np.unique(np.concatenate([*_drops(plan, task, out).values()]))) for task in tasks)


def resolved(plan: PreparationPlan, out: Path) -> bool:
    """Whether valid drop arrays exist for the current scans."""
    return _read(out / "prep" / "drop.json") == _digests(plan, out)


class Drop:
    """The documents that one task must drop. Raises UserError if the drop arrays are missing or damaged."""

    def __init__(self, plan: PreparationPlan, task: int, out: Path) -> None:
        self.sha256 = drop_sha256(plan, task, out)
        self._next = 0
        try:
            self._indices = _drops(plan, task, out)
        except DamagedData as error:
            raise UserError(
                f"The duplicates of task {task} are not known; run `maskwright prep task {out} --stage resolve` "
                f"({one_line(str(error))})"
            ) from error

    def reasons(self, count: int) -> list[str]:
        """The reason for dropping each of the next `count` documents, or "" for those that stay."""
        first, self._next = self._next, self._next + count
        reasons = [""] * count
        for kind, indices in reversed(self._indices.items()):  # the first kind has the last word
            begin, end = np.searchsorted(indices, [first, self._next])
            for index in indices[begin:end].tolist():
                reasons[index - first] = REASONS[kind]
        return reasons


def _drops(plan: PreparationPlan, task: int, out: Path) -> dict[str, np.ndarray]:
    """Indices of the documents that a task drops, by kind of duplicate."""
    return {kind: read_drops(_array_path(out, "drop", task, kind)) for kind in duplicate_kinds(plan)}


def drop_sha256(plan: PreparationPlan, task: int, out: Path) -> str | None:
    """SHA-256 of a task's drop arrays; None if the plan keeps duplicates, "" if an array is missing."""
    if not duplicate_kinds(plan):
        return None
    digest = hashlib.sha256()
    for kind in duplicate_kinds(plan):
        try:
            digest.update(_array_path(out, "drop", task, kind).read_bytes())
        except OSError:
            return ""
    return digest.hexdigest()


def _digests(plan: PreparationPlan, out: Path) -> dict[str, str]:
    """SHA-256 of the records of all scans, and of the drop arrays of all tasks."""
    tasks = range(len(plan.tasks))
    scans = json.dumps([_read(_record_path(out, task)) for task in tasks], sort_keys=True)
    drops = json.dumps([drop_sha256(plan, task, out) for task in tasks])
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in (("scans", scans), ("drops", drops))}


def _read(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = read_json(path, dict[str, Any])
        typed(dict[str, str], record.get("files", {}))
    except (UserError, ValueError):
        return {}
    return record


def _record_path(out: Path, task: int) -> Path:
    return out / "prep" / "scan" / f"{task:05d}.json"


def _array_path(out: Path, folder: str, task: int, kind: str) -> Path:
    return out / "prep" / folder / f"{task:05d}.{kind}.npy"
