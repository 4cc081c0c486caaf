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
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.array_files import load_integers, row_writer
from data_prep.cleaning import document_hashes, resolve_repeats, signatures
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
    """The kinds of duplicates that the plan drops, in the order of their application."""
    return {"none": [], "exact": ["exact"], "near": ["exact", "near"]}[plan.settings.deduplicate]


def scan(bench: "Workbench", task: int, report: Report) -> None:
    """Hash the documents of a task. Do nothing if a valid scan exists."""
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
    """Whether a task has a scan record. The scan's arrays are not read."""
    return _read(_record_path(out, task)).get("hash") == plan.task_hash(task)


def scanned(plan: PreparationPlan, task: int, out: Path) -> bool:
    """Whether the scan of a task exists and its arrays have the recorded checksums."""
    if not recorded(plan, task, out):
        return False
    record = _read(_record_path(out, task))
    try:
        return all(sha256_file(_scan_path(out, task, kind)) == digest for kind, digest in record["files"].items())
    except OSError:
        return False


def resolve(plan: PreparationPlan, out: Path, max_bytes: int = 512 << 20) -> int:
    """Compute from all scans which documents each task drops; return their number. Reuse a valid earlier result.

    A larger `max_bytes` needs fewer passes over the scans of a large corpus. The result is the same. Raises UserError
    if a scan is missing.
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
    """Whether valid drop arrays exist for the current scans."""
    record = _read(out / "prep" / "drop.json")
    return record == {"scans": _scans(plan, out), "drops": _drops(plan, out)}


class Drop:
    """The documents that one task must drop. Raises UserError if the drop arrays are missing or damaged."""

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
        """The documents of the next batch that stay. Adds the dropped ones to `left_out`, by reason."""
        first, self._seen = self._seen, self._seen + len(batch)
        reason = np.zeros(len(batch), dtype=int)
        for number, places in reversed(list(enumerate(self._places.values(), 1))):
            begin, end = np.searchsorted(places, [first, self._seen])
            reason[places[begin:end].astype(np.int64) - first] = number
        for number, kind in enumerate(self._places, 1):
            left_out[REASONS[kind]] += int((reason == number).sum())
        return [row for row, dropped in zip(batch, reason, strict=True) if not dropped]


def drop_sha256(plan: PreparationPlan, task: int, out: Path) -> str | None:
    """SHA-256 of a task's drop arrays; None if the plan keeps duplicates, "" if an array is missing."""
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
    """SHA-256 of the records of all scans."""
    records = [_read(_record_path(out, task)) for task in range(len(plan.tasks))]
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


def _drops(plan: PreparationPlan, out: Path) -> str:
    """SHA-256 of the drop arrays of all tasks."""
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
