"""Leaving out duplicates across all tasks: each task is scanned, then one process resolves what each must drop.

OUT/prep/scan/NNNNN.json        written last: the task's hash, and the SHA-256 of the arrays beside it
OUT/prep/scan/NNNNN.exact.npy   a hash of each document; .near.npy what near duplicates have in common
OUT/prep/drop/NNNNN.exact.npy   places of the documents to drop, .near.npy likewise
OUT/prep/drop.json              written last: SHA-256 over the scans that were resolved, and over these arrays

The earliest of equal documents stays, so what was dropped of a task remains so when inputs are added.
"""

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.cleaning import load_integers
from data_prep.cleaning.hash_arrays import row_writer
from data_prep.cleaning.key_passes import MAX_BYTES, document_hashes, resolve_repeats
from data_prep.cleaning.near_duplicates import signatures
from data_prep.errors import DamagedData, UserError, one_line
from data_prep.files import sha256_file, write_json
from data_prep.jobs.preparation_plan import PreparationPlan
from data_prep.jobs.task_progress import Report, TaskProgress
from data_prep.reading import read_json, typed
from data_prep.sources import SourceRow

if TYPE_CHECKING:
    from data_prep.jobs.workbench import Workbench

REASONS = {"exact": "duplicate", "near": "near duplicate"}


def kinds(plan: PreparationPlan) -> list[str]:
    """The kinds of duplicates that are left out, in the order in which they are."""
    return {"none": [], "exact": ["exact"], "near": ["exact", "near"]}[plan.settings.deduplicate]


def scan(bench: "Workbench", task: int, report: Report) -> None:
    """Hash the documents of a task, unless that has been done."""
    settings = bench.plan.settings
    _check_deduplicates(bench.plan)
    if not scanned(bench.plan, task, bench.out):
        keys: dict[str, Callable[[list[str]], np.ndarray]] = {
            "exact": document_hashes,
            "near": lambda texts: signatures(texts, settings.near_threshold),
        }
        documents = bench.documents(task)
        count = 0
        with contextlib.ExitStack() as stack:
            add = {
                kind: stack.enter_context(row_writer(_scan_path(bench.out, task, kind), keys[kind]([]).shape[1]))
                for kind in kinds(bench.plan)
            }
            for batch in documents:
                texts = [row.text for row in batch]
                for kind in add:
                    add[kind](keys[kind](texts))
                count += len(batch)
                report(TaskProgress(documents.rows.bytes_read, documents.rows.text_bytes, count))
        files = {kind: sha256_file(_scan_path(bench.out, task, kind)) for kind in kinds(bench.plan)}
        write_json(_record_path(bench.out, task), {"hash": bench.plan.task_hash(task), "files": files})
    report(TaskProgress(file_bytes=bench.plan.tasks[task].bytes))


def _check_deduplicates(plan: PreparationPlan) -> None:
    if not kinds(plan):
        raise UserError("The plan keeps duplicates, so there is nothing to scan or resolve; plan with --deduplicate.")


def recorded(plan: PreparationPlan, task: int, out: Path) -> bool:
    """Whether a task has the record of a scan."""
    return _read(_record_path(out, task)).get("hash") == plan.task_hash(task)


def scanned(plan: PreparationPlan, task: int, out: Path) -> bool:
    """Whether the scan of a task is there and sound."""
    if not recorded(plan, task, out):
        return False
    record = _read(_record_path(out, task))
    try:
        return all(sha256_file(_scan_path(out, task, kind)) == digest for kind, digest in record["files"].items())
    except OSError:
        return False


def resolve(plan: PreparationPlan, out: Path, max_bytes: int = MAX_BYTES) -> int:
    """From the scans of all tasks to what each must drop, unless that has been done; returns how many documents.

    More memory than `max_bytes` means fewer passes over the scans of a corpus of many millions of documents, and the
    same answer. Raises UserError if a scan is missing.
    """
    _check_deduplicates(plan)
    missing = [task for task in range(len(plan.tasks)) if not scanned(plan, task, out)]
    if missing:
        raise UserError(
            f"{len(missing)} tasks are not scanned, the first being {missing[0]}; run `maskwright prep scan`."
        )
    if not resolved(plan, out):
        (out / "prep" / "drop").mkdir(exist_ok=True)
        for kind in kinds(plan):
            scans = [_scan_path(out, task, kind) for task in range(len(plan.tasks))]
            drops = [_drop_path(out, task, kind) for task in range(len(plan.tasks))]
            resolve_repeats(scans, drops, kind == "near", max_bytes)
        write_json(out / "prep" / "drop.json", {"scans": _scans(plan, out), "drops": _drops(plan, out)})
    return sum(_n_dropped(plan, task, out) for task in range(len(plan.tasks)))


def resolved(plan: PreparationPlan, out: Path) -> bool:
    """Whether what each task must drop is known and sound, for these very scans."""
    record = _read(out / "prep" / "drop.json")
    return record == {"scans": _scans(plan, out), "drops": _drops(plan, out)}


class Drop:
    """The documents that one task must drop. Raises UserError if that is not known."""

    def __init__(self, plan: PreparationPlan, task: int, out: Path) -> None:
        self.sha256 = drop_sha256(plan, task, out)
        self._seen = 0
        try:
            self._places = {kind: _drop(task, kind, out) for kind in kinds(plan)}
        except DamagedData as error:
            raise UserError(
                one_line(f"The duplicates of task {task} are not known; run `maskwright prep resolve` ({error})")
            ) from error

    def apply(self, batch: "list[SourceRow]", left_out: Counter[str]) -> "list[SourceRow]":
        """The documents of the next batch that stay; the others are counted."""
        first, self._seen = self._seen, self._seen + len(batch)
        reason = np.zeros(len(batch), dtype=int)
        for number, places in reversed(list(enumerate(self._places.values(), 1))):
            begin, end = np.searchsorted(places, [first, self._seen])
            reason[places[begin:end].astype(np.int64) - first] = number
        for number, kind in enumerate(self._places, 1):
            left_out[REASONS[kind]] += int((reason == number).sum())
        return [row for row, dropped in zip(batch, reason, strict=True) if not dropped]


def drop_sha256(plan: PreparationPlan, task: int, out: Path) -> str | None:
    """SHA-256 over what a task must drop; None if nothing is to be dropped at all, "" if it is not known."""
    if not kinds(plan):
        return None
    digest = hashlib.sha256()
    for kind in kinds(plan):
        try:
            digest.update(_drop_path(out, task, kind).read_bytes())
        except OSError:
            return ""
    return digest.hexdigest()


def _scans(plan: PreparationPlan, out: Path) -> str:
    """SHA-256 over the records of all scans."""
    records = [_read(_record_path(out, task)) for task in range(len(plan.tasks))]
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


def _drops(plan: PreparationPlan, out: Path) -> str:
    """SHA-256 over what all tasks must drop."""
    digests = [drop_sha256(plan, task, out) for task in range(len(plan.tasks))]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = read_json(path, dict[str, Any])
        typed(dict[str, str], record.get("files", {}))
    except (UserError, ValueError):
        return {}
    return record


def _n_dropped(plan: PreparationPlan, task: int, out: Path) -> int:
    return len(np.unique(np.concatenate([_drop(task, kind, out) for kind in kinds(plan)])))


def _drop(task: int, kind: str, out: Path) -> np.ndarray:
    return load_integers(_drop_path(out, task, kind), 1)


def _record_path(out: Path, task: int) -> Path:
    return out / "prep" / "scan" / f"{task:05d}.json"


def _scan_path(out: Path, task: int, kind: str) -> Path:
    return out / "prep" / "scan" / f"{task:05d}.{kind}.npy"


def _drop_path(out: Path, task: int, kind: str) -> Path:
    return out / "prep" / "drop" / f"{task:05d}.{kind}.npy"
