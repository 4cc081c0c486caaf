"""Deduplication across all tasks: scan each task, resolve each range of keys, then each task joins its drops.

OUT/prep/scan/NNNNN.exact       keys of the documents of a task, by range; .near: MinHash bands likewise
OUT/prep/scan/NNNNN.json        written last: ScanRecord
OUT/prep/resolve/RRRRR.exact    indices of the documents to drop due to the keys of a range, by task; .near likewise
OUT/prep/resolve/RRRRR.json     written last: RangeRecord
OUT/prep/drop/NNNNN.exact.npy   indices of the documents to drop, joined when the task runs; .near.npy likewise

The earliest of equal documents stays. So inputs that are added later do not change the drops of earlier tasks, and the
number of ranges changes no drop.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from data_prep.cleaning import KeyRange, find_repeats, join_drops, key_writer
from data_prep.common.errors import DamagedData, UserError, one_line
from data_prep.common.files import make_folder, sha256_file, write_json
from data_prep.common.reading import json_or_none
from data_prep.jobs.preparation_plan import PreparationPlan
from data_prep.jobs.task_documents import PreparationContext, TaskDocuments
from data_prep.jobs.task_progress import TaskProgress, TaskReport

COLUMNS = {"exact": 2, "near": 1}  # of a key
REASONS = {"exact": "duplicate", "near": "near duplicate"}


@dataclass(frozen=True)
class ScanRecord:
    """A finished scan: hash of the task, ranges of the plan, number of documents, and SHA-256 of the key files."""

    hash: str
    ranges: int
    documents: int
    files: dict[str, str]


@dataclass(frozen=True)
class RangeRecord:
    """A resolved range: SHA-256 of all scan records, and of the files of the range."""

    scans: str
    files: dict[str, str]


def duplicate_kinds(plan: PreparationPlan) -> list[str]:
    """The kinds of duplicates that the plan drops, in the order of their application."""
    return {"none": [], "exact": ["exact"], "near": ["exact", "near"]}[plan.settings.deduplicate]


def scan(context: PreparationContext, task: int, report: TaskReport) -> None:
    """Write the keys of the documents of a task. Do nothing if a valid scan exists."""
    plan, out = context.plan, context.out
    if not scanned(plan, task, out):
        thresholds = {"exact": None, "near": plan.settings.near_threshold}
        documents, paths = TaskDocuments(context, task), _paths(plan, out, "scan", task)
        count = 0
        with contextlib.ExitStack() as stack:
            writers = [
                stack.enter_context(key_writer(path, plan.ranges, thresholds[kind], plan.settings.near_unit))
                for kind, path in paths.items()
            ]
            for batch in documents:
                texts = [row.text for row in batch]
                for write in writers:
                    write(texts)
                count += len(batch)
                report(TaskProgress(documents.rows.bytes_read, documents.rows.text_bytes, count))
        record = ScanRecord(plan.task_hash(task), plan.ranges, count, _digests(paths))
        write_json(_record_path(out, "scan", task), asdict(record))
    report(TaskProgress(file_bytes=plan.tasks[task].bytes))


def scan_record(plan: PreparationPlan, task: int, out: Path) -> ScanRecord | None:
    """The scan record of a task, or None without one for this plan. The key files are not read."""
    record: ScanRecord | None = json_or_none(_record_path(out, "scan", task), ScanRecord)
    valid = record and (record.hash, record.ranges) == (plan.task_hash(task), plan.ranges)
    return record if valid else None


def scanned(plan: PreparationPlan, task: int, out: Path) -> bool:
    """Whether the scan of a task exists and its key files have the recorded checksums."""
    record = scan_record(plan, task, out)
    return record is not None and record.files == _digests(_paths(plan, out, "scan", task))


def resolve(context: PreparationContext, number: int, report: TaskReport, max_bytes: int) -> None:
    """Find the documents that repeat an earlier one in the keys of a range. Do nothing if a valid result exists.

    A larger `max_bytes` needs fewer passes. The result is the same. Raises UserError if a scan is missing or damaged.
    """
    plan, out = context.plan, context.out
    tasks = range(len(plan.tasks))
    found = [scan_record(plan, task, out) for task in tasks]
    scans = [record for record in found if record]
    if len(scans) < len(found):
        raise UserError(
            f"{len(found) - len(scans)} tasks are not scanned, the first being {found.index(None)}; run "
            f"`maskwright prep task {out} {found.index(None)} --stage scan`."
        )
    paths = _paths(plan, out, "resolve", number)
    digest = _digest_of(scans)
    record: RangeRecord | None = json_or_none(_record_path(out, "resolve", number), RangeRecord)
    if record is None or record.scans != digest or record.files != _digests(paths):
        make_folder(out / "prep" / "resolve")
        for step, (kind, path) in enumerate(paths.items()):
            files = [_paths(plan, out, "scan", task)[kind] for task in tasks]
            keys = KeyRange(files, [scan.documents for scan in scans], COLUMNS[kind], number, plan.ranges)

            def show(done: float, step: int = step) -> None:
                report(TaskProgress(file_bytes=int(plan.range_bytes * (step + done) / len(paths))))

            try:
                find_repeats(keys, path, max_bytes, show)
            except DamagedData as error:
                raise UserError(
                    f"{one_line(str(error))} Scan all tasks again with `maskwright prep task {out} TASK... --stage "
                    "scan`, which keeps undamaged scans."
                ) from error
        write_json(_record_path(out, "resolve", number), asdict(RangeRecord(digest, _digests(paths))))
    report(TaskProgress(file_bytes=plan.range_bytes))


def unresolved(plan: PreparationPlan, out: Path) -> list[int]:
    """The ranges without a result for the current scans, by their records. Their files are not read."""
    found = [scan_record(plan, task, out) for task in range(len(plan.tasks))]
    digest = None if None in found else _digest_of([record for record in found if record])
    records = [json_or_none(_record_path(out, "resolve", number), RangeRecord) for number in range(plan.ranges)]
    return [number for number, record in enumerate(records) if record is None or record.scans != digest]


def _digest_of(scans: list[ScanRecord]) -> str:
    return hashlib.sha256(json.dumps([asdict(record) for record in scans]).encode()).hexdigest()


class Drop:
    """The documents that one task must drop. Raises UserError if a range is not resolved, or its files are damaged."""

    def __init__(self, plan: PreparationPlan, task: int, out: Path) -> None:
        self._next = 0
        self._indices = {}
        if duplicate_kinds(plan):
            make_folder(out / "prep" / "drop")
        ranges = [_paths(plan, out, "resolve", number) for number in range(plan.ranges)]
        try:
            for kind in duplicate_kinds(plan):
                self._indices[kind] = join_drops([paths[kind] for paths in ranges], task, _drop_path(out, task, kind))
        except DamagedData as error:
            raise UserError(
                f"The duplicates of task {task} are not known; run `maskwright prep task {out} --stage resolve` "
                f"({one_line(str(error))})"
            ) from error
        self.sha256 = drop_sha256(plan, task, out)

    def reasons(self, count: int) -> list[str]:
        """The reason for dropping each of the next `count` documents, or "" for those that stay."""
        first, self._next = self._next, self._next + count
        reasons = [""] * count
        for kind, indices in reversed(self._indices.items()):  # the first kind has the last word
            begin, end = np.searchsorted(indices, [first, self._next])
            for index in indices[begin:end].tolist():
                reasons[index - first] = REASONS[kind]
        return reasons


def drop_sha256(plan: PreparationPlan, task: int, out: Path) -> str | None:
    """SHA-256 of a task's joined drops; None if the plan keeps duplicates, "" if they are missing."""
    if not duplicate_kinds(plan):
        return None
    digest = hashlib.sha256()
    for kind in duplicate_kinds(plan):
        try:
            digest.update(_drop_path(out, task, kind).read_bytes())
        except OSError:
            return ""
    return digest.hexdigest()


def _digests(paths: Mapping[str, Path]) -> dict[str, str]:
    """SHA-256 of files by kind; empty if one cannot be read."""
    try:
        return {kind: sha256_file(path) for kind, path in paths.items()}
    except OSError:
        return {}


def _paths(plan: PreparationPlan, out: Path, stage: str, number: int) -> dict[str, Path]:
    """The files of a task or range by kind of duplicate."""
    return {kind: out / "prep" / stage / f"{number:05d}.{kind}" for kind in duplicate_kinds(plan)}


def _record_path(out: Path, stage: str, number: int) -> Path:
    return out / "prep" / stage / f"{number:05d}.json"


def _drop_path(out: Path, task: int, kind: str) -> Path:
    return out / "prep" / "drop" / f"{task:05d}.{kind}.npy"
