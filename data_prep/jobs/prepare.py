"""Preparation of a data set in stages: plan, scan and resolve (for deduplication), tasks, merge.

`prepare` runs all stages on this machine. Each stage can be interrupted at any time and run again.
"""

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data_prep.cache import CACHE, CACHE_BYTES, Cache
from data_prep.cleaning import MIN_WORDS, NGRAM_WORDS, evaluation_grams, evaluation_texts
from data_prep.errors import UserError, interrupted
from data_prep.files import LockHeldError, file_lock, fsync_path, make_folder, sha256_file
from data_prep.format import Dataset, Manifest, TokenizerInfo
from data_prep.jobs import deduplication
from data_prep.jobs.document_ids import id_note
from data_prep.jobs.input_locations import InputLocations, write_place
from data_prep.jobs.merge import NoDocuments, merge
from data_prep.jobs.preparation_notes import notes_of
from data_prep.jobs.preparation_plan import (
    PreparationPlan,
    PreparationSettings,
    check_out,
    evaluation_path,
    extend,
    new_evaluation_path,
    open_plan,
    read_plan,
    write_plan,
)
from data_prep.jobs.process_pool import Work, Workers
from data_prep.jobs.task_progress import Report, TaskProgress
from data_prep.jobs.task_worker import TaskRecord, read_record, record_path, run_task, suffices, verified_record
from data_prep.jobs.workbench import Workbench
from data_prep.sources import SourceInput, examine
from data_prep.tokenizer import copy_files, describe
from data_prep.urls import is_url

Show = Callable[[str, TaskProgress, int], None]
"""Progress display; arguments: a stage's name, its totals so far, and the bytes of all its input."""


def show_nothing(stage: str, progress: TaskProgress, total_bytes: int) -> None:
    """Progress display that shows nothing."""


@dataclass(frozen=True)
class PrepareRequest:
    """Inputs, tokenizer, output folder and settings. Documents must not contain texts of the `evaluation` files."""

    inputs: Sequence[SourceInput]
    tokenizer: Path
    out: Path
    settings: PreparationSettings = field(default_factory=PreparationSettings)
    evaluation: Sequence[Path] = ()
    evaluation_ngram: int = NGRAM_WORDS
    task_bytes: int | None = None
    strict: bool = False
    cache: Path = CACHE
    cache_bytes: int = CACHE_BYTES


@dataclass(frozen=True)
class Prepared:
    """Result of a preparation: manifests by folder, number of tasks that this call did, notes for the user."""

    manifests: dict[Path, Manifest]
    new_tasks: int
    notes: list[str]


def prepare(request: PrepareRequest, workers: Workers, show: Show = show_nothing) -> Prepared:
    """Turn text into the data set OUT, or OUT/train and OUT/valid with a valid fraction.

    The output does not depend on `workers`. If inputs are added to a finished data set, only those are processed.
    Raises UserError for bad input, an OUT with other input, a killed worker, or a full disk.
    """
    out = request.out
    tokenizer = describe(request.tokenizer)  # raises before anything is written
    with _explained(out), _locked(out, check_out):
        begun = check_out(out)
        plan, notes = _make_plan(request, tokenizer)
        if deduplication.kinds(plan):
            tasks = range(len(plan.tasks))
            workers.run(deduplication.scan, _largest_first(plan, tasks), out, _shown(show, "scan", plan, tasks))
            deduplication.resolve(plan, out)
        records, new_tasks = _do(plan, out, workers, show)
        try:
            manifests, merged_notes = _merge(plan, records, out)
        except NoDocuments:
            if not begun:  # this call wrote everything in OUT; remove it so that the next call can start
                for name in ("prep", *(["shards", "tokenizer"] if plan.splits == ["."] else plan.splits)):
                    shutil.rmtree(out / name, ignore_errors=True)
            raise
        return Prepared(manifests, new_tasks, notes + merged_notes)


def plan_only(request: PrepareRequest) -> tuple[PreparationPlan, list[str]]:
    """Create or extend the plan of OUT without running its tasks. Returns the plan and notes."""
    tokenizer = describe(request.tokenizer)
    with _explained(request.out), _locked(request.out, check_out):
        return _make_plan(request, tokenizer)


def scan_tasks(out: Path, tasks: Sequence[int], workers: Workers, show: Show = show_nothing) -> None:
    """Scan these tasks for duplicates. Processes and errors as in `do_tasks`."""
    _attempt_all(deduplication.scan, "scan", out, tasks, workers, show)


def resolve_tasks(out: Path, max_bytes: int) -> int:
    """Compute which documents each task drops, after all scans; return the number of dropped documents."""
    with _explained(out), _locked(out, read_plan):
        return deduplication.resolve(read_plan(out), out, max_bytes)


def do_tasks(out: Path, tasks: Sequence[int], workers: Workers, show: Show = show_nothing) -> list[TaskRecord]:
    """Run these tasks of a plan. Any number of processes and machines may run tasks of one plan at the same time.

    A failed task does not stop the others. After all of them, raises UserError with the reason of the first failure.
    """
    return _attempt_all(run_task, "task", out, tasks, workers, show)


def _attempt_all(work: Work, stage: str, out: Path, tasks: Sequence[int], workers: Workers, show: Show) -> list[Any]:
    with _explained(out):
        plan = _checked(out, tasks)
        results = workers.run(functools.partial(_attempt, work), tasks, out, _shown(show, stage, plan, tasks))
    failed = [(task, result) for task, result in zip(tasks, results, strict=True) if isinstance(result, str)]
    if failed:
        raise UserError(f"{len(failed)} of {len(tasks)} tasks failed, the first being {failed[0][0]}: {failed[0][1]}")
    return results


def merge_tasks(out: Path, workers: Workers) -> Prepared:
    """Verify every task's record and write the manifests. Raises UserError naming the unfinished tasks."""
    with _explained(out), _locked(out, read_plan):
        plan = read_plan(out)
        if deduplication.kinds(plan) and not deduplication.resolved(plan, out):
            raise UserError(f"The duplicates in {out} are not known, or damaged; run `maskwright prep resolve {out}`.")
        records = workers.run(_verify, range(len(plan.tasks)), out, lambda progress: None)
        missing = [str(task) for task, record in enumerate(records) if record is None]
        if missing:
            names = ", ".join(missing[:20]) + (" ..." if len(missing) > 20 else "")
            raise UserError(f"{len(missing)} of {len(records)} tasks of {out} are not finished: {names}.")
        manifests, notes = _merge(plan, records, out)
        return Prepared(manifests, 0, notes)


def incomplete(out: Path, stage: str) -> list[int]:
    """The tasks of a stage ("scan" or "task") without a record for this plan. Their files are not read."""
    plan = read_plan(out)
    done: Callable[[PreparationPlan, int, Path], object] = deduplication.recorded if stage == "scan" else read_record
    return [task for task in range(len(plan.tasks)) if not done(plan, task, out)]


def _make_plan(request: PrepareRequest, tokenizer: TokenizerInfo) -> tuple[PreparationPlan, list[str]]:
    """Create or extend the plan of OUT with all inputs of the request, and write to OUT all that a task needs.

    Returns the plan and notes. Raises UserError if an input cannot be read or OUT was prepared with other settings.
    """
    out, cache = request.out, Cache(request.cache, request.cache_bytes)
    settings, notes = _with_evaluation(request)
    plan = open_plan(out, tokenizer, settings)
    inputs = _outside(request.inputs, out)
    examined = [examine(source, cache, settings.reading) for source in inputs]
    plan, locations = extend(plan, inputs, examined, request.task_bytes)
    # First: this file marks OUT as the folder of a preparation.
    write_place(InputLocations(locations, request.strict, str(request.cache), request.cache_bytes), out)
    for folder in ("tasks", "scan"):
        (out / "prep" / folder).mkdir(exist_ok=True)
    if settings.evaluation_sha256:
        os.replace(new_evaluation_path(out), evaluation_path(out))
        fsync_path(out / "prep")
    for split in plan.splits:
        copy_files(request.tokenizer, out / split / "tokenizer")
        (out / split / "shards").mkdir(exist_ok=True)
        fsync_path(out / split)
    write_plan(plan, out)  # last: if a plan exists, so does everything that it needs
    return plan, notes


def _outside(inputs: Sequence[SourceInput], out: Path) -> list[SourceInput]:
    """The inputs that are not files of OUT. OUT may lie in a folder of inputs."""
    folder = os.path.realpath(out)
    outside = [
        one
        for one in inputs
        if one.kind == "hub" or is_url(one.location) or not Path(os.path.realpath(one.location)).is_relative_to(folder)
    ]
    if not outside:
        raise UserError(f"All inputs lie in {out}, the folder of the output; choose another --out folder.")
    return outside


def _with_evaluation(request: PrepareRequest) -> tuple[PreparationSettings, list[str]]:
    """Save the n-grams of the evaluation files in OUT/prep. Returns the settings with their SHA-256, and notes."""
    if not request.evaluation:
        return request.settings, []
    texts = (text for file in request.evaluation for text in evaluation_texts(file))
    least = min(MIN_WORDS, request.evaluation_ngram)
    grams, skipped = evaluation_grams(texts, request.evaluation_ngram, least)
    path = new_evaluation_path(request.out)
    grams.save(path)
    note = f"{skipped:,} evaluation texts have fewer than {least} words and are not looked for"
    return replace(request.settings, evaluation_sha256=sha256_file(path)), [note] if skipped else []


def _do(plan: PreparationPlan, out: Path, workers: Workers, show: Show) -> tuple[list[TaskRecord], int]:
    """Run the unfinished tasks, largest first. Returns the records of all tasks and the number run now."""
    tasks = range(len(plan.tasks))
    records = workers.run(_verify, tasks, out, _shown(show, "verify", plan, tasks))
    order = _largest_first(plan, [task for task in tasks if records[task] is None])
    for task, record in zip(order, workers.run(run_task, order, out, _shown(show, "task", plan, order)), strict=True):
        records[task] = record
    return records, len(order)


def _largest_first(plan: PreparationPlan, tasks: Sequence[int]) -> list[int]:
    return sorted(tasks, key=lambda task: -plan.tasks[task].bytes)


def _shown(show: Show, stage: str, plan: PreparationPlan, tasks: Sequence[int]) -> Report:
    total = sum(plan.tasks[task].bytes for task in tasks)
    return lambda progress: show(stage, progress, total)


def _checked(out: Path, tasks: Sequence[int]) -> PreparationPlan:
    plan = read_plan(out)
    if not plan.tasks:
        raise UserError(f"The plan of {out} has no tasks, since all of its inputs are empty; plan with others.")
    for task in tasks:
        if not 0 <= task < len(plan.tasks):
            raise UserError(f"{out} has no task {task}; its tasks are 0 to {len(plan.tasks) - 1}.")
    return plan


def _attempt(work: Work, bench: Workbench, task: int, report: Report) -> Any:
    """The result of a task, or the message of its error."""
    try:
        return work(bench, task, report)
    except UserError as error:
        return str(error)


def _verify(bench: Workbench, task: int, report: Report) -> TaskRecord | None:
    """The valid record of a finished task, else None. Deletes the record if a file of the task is damaged."""
    unverified = read_record(bench.plan, task, bench.out)
    record = unverified and verified_record(bench.plan, task, bench.out)
    if unverified and not record:  # keeps a record that another process has only now written
        record_path(bench.out, task).unlink(missing_ok=True)
    return record if suffices(bench, record) else None


@contextlib.contextmanager
def _locked(out: Path, check: Callable[[Path], object]) -> Iterator[None]:
    """Lock the folder against a second preparation. The system releases the lock when this process exits.

    If `check` raises, the folder does not change.
    """
    check(out)
    make_folder(out / "prep")
    try:
        with file_lock(out / "prep" / "lock", wait=False):
            yield
    except LockHeldError:
        raise UserError(f"Another process is preparing {out} now; wait for it or stop it.") from None


@contextlib.contextmanager
def _explained(out: Path) -> Iterator[None]:
    """Turn a full disk or any other OSError into a UserError."""
    try:
        yield
    except OSError as error:
        raise interrupted(error, out) from error


def finished(plan: PreparationPlan, out: Path) -> dict[Path, Manifest] | None:
    """The manifests by folder, if all are valid and have exactly the inputs of the plan; else None."""
    try:
        manifests = {out / split: _sound(out / split) for split in plan.splits}
    except UserError:
        return None  # the tasks' records decide which shards to write again
    inputs = [(one.source, one.bytes, one.digest) for one in plan.inputs]
    same = all([(s.source, s.bytes, s.digest) for s in manifest.sources] == inputs for manifest in manifests.values())
    return manifests if same else None


def _sound(folder: Path) -> Manifest:
    dataset = Dataset(folder)
    dataset.check_files()
    dataset.check_indexes()
    return dataset.manifest


def _merge(plan: PreparationPlan, records: list[TaskRecord], out: Path) -> tuple[dict[Path, Manifest], list[str]]:
    """Write the manifests. Returns them by folder, and notes for the user."""
    manifests = dict(zip([out / split for split in plan.splits], merge(plan, records, out), strict=True))
    repeated = id_note(plan, [record.task for record in records if record.ids_sha256], out)
    return manifests, notes_of(plan, records) + ([repeated] if repeated else [])
