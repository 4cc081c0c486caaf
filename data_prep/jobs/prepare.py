"""Preparing a data set, piece by piece: plan, scan and resolve (where duplicates are left out), tasks, merge.

`prepare` does all of it on this machine. Each piece may be interrupted at any moment and called again.
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
from data_prep.tokenizer import describe
from data_prep.tokenizer.hf_tokenizer import copy_files
from data_prep.urls import is_url

Show = Callable[[str, TaskProgress, int], None]
"""Gets a stage's name, its totals and the bytes of all its input."""


def show_nothing(stage: str, progress: TaskProgress, total_bytes: int) -> None:
    """For when nobody watches."""


@dataclass(frozen=True)
class PrepareRequest:
    """What to prepare from what. `evaluation` are files whose texts no document may contain."""

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
    """What a preparation gave: manifests by folder, tasks done now (0: it had been finished), notes for the user."""

    manifests: dict[Path, Manifest]
    new_tasks: int
    notes: list[str]


def prepare(request: PrepareRequest, workers: Workers, show: Show = show_nothing) -> Prepared:
    """Turn text into the data set OUT, or OUT/train and OUT/valid with a valid fraction.

    The output does not depend on `workers`. Inputs that are added to a finished data set are processed alone. Raises
    UserError for bad input, an OUT that belongs to other input, a killed worker, or a full disk.
    """
    out = request.out
    tokenizer = describe(request.tokenizer)  # refused before anything is written
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
            if not begun:  # all that OUT holds is of this call, and must not stand in the way of the next one
                for name in ("prep", *(["shards", "tokenizer"] if plan.splits == ["."] else plan.splits)):
                    shutil.rmtree(out / name, ignore_errors=True)
            raise
        return Prepared(manifests, new_tasks, notes + merged_notes)


def plan_only(request: PrepareRequest) -> tuple[PreparationPlan, list[str]]:
    """Make or extend the plan of OUT, and do nothing of it; also returns notes."""
    tokenizer = describe(request.tokenizer)
    with _explained(request.out), _locked(request.out, check_out):
        return _make_plan(request, tokenizer)


def scan_tasks(out: Path, tasks: Sequence[int], workers: Workers, show: Show = show_nothing) -> None:
    """Scan these tasks for duplicates; what holds of `do_tasks` holds here."""
    _attempt_all(deduplication.scan, "scan", out, tasks, workers, show)


def resolve_tasks(out: Path, max_bytes: int) -> int:
    """Find what each task must drop, when all are scanned; returns how many documents that is."""
    with _explained(out), _locked(out, read_plan):
        return deduplication.resolve(read_plan(out), out, max_bytes)


def do_tasks(out: Path, tasks: Sequence[int], workers: Workers, show: Show = show_nothing) -> list[TaskRecord]:
    """Do these tasks of a plan; any number of processes and machines may do tasks of one plan at once.

    A task that fails does not keep the others from being done; then raises UserError, saying why the first has failed.
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
    """Write the manifests when every task's record verifies; raises UserError naming the tasks whose does not."""
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
    """The tasks of a stage ("scan" or "task") that have no record of the plan's; their files are not read."""
    plan = read_plan(out)
    done: Callable[[PreparationPlan, int, Path], object] = deduplication.recorded if stage == "scan" else read_record
    return [task for task in range(len(plan.tasks)) if not done(plan, task, out)]


def _make_plan(request: PrepareRequest, tokenizer: TokenizerInfo) -> tuple[PreparationPlan, list[str]]:
    """The plan of OUT with all inputs of the request, and notes; afterwards OUT has all that a task needs.

    Raises UserError if an input cannot be read, or OUT was begun with other settings.
    """
    out, cache = request.out, Cache(request.cache, request.cache_bytes)
    settings, notes = _with_evaluation(request)
    plan = open_plan(out, tokenizer, settings)
    inputs = _outside(request.inputs, out)
    examined = [examine(one, cache, settings.reading) for one in inputs]
    plan, locations = extend(plan, inputs, examined, request.task_bytes)
    # First: by it OUT is known as a preparation that was begun.
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
    write_plan(plan, out)  # last: who finds a plan finds all that belongs to it
    return plan, notes


def _outside(inputs: Sequence[SourceInput], out: Path) -> list[SourceInput]:
    """The inputs that are not files of OUT, which may lie in a folder of inputs."""
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
    """The settings, with the n-grams of the evaluation files saved in OUT/prep beside those of the plan; and notes."""
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
    """Do the tasks that are not done yet, the largest first; the records of all, and how many were done now."""
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
    """The result of a task, or why it failed."""
    try:
        return work(bench, task, report)
    except UserError as error:
        return str(error)


def _verify(bench: Workbench, task: int, report: Report) -> TaskRecord | None:
    """The record of a task that need not be done again; that of a damaged one is forgotten."""
    there = read_record(bench.plan, task, bench.out)
    record = there and verified_record(bench.plan, task, bench.out)
    if there and not record:  # not that of a task which another process has finished just now
        record_path(bench.out, task).unlink(missing_ok=True)
    return record if suffices(bench, record) else None


@contextlib.contextmanager
def _locked(out: Path, check: Callable[[Path], object]) -> Iterator[None]:
    """Keeps a second preparation out of the folder; the system releases the lock however this process ends.

    A folder that `check` raises for is left as it is.
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
    """A disk that is full, or any other failure of the system, in one sentence."""
    try:
        yield
    except OSError as error:
        raise interrupted(error, out) from error


def finished(plan: PreparationPlan, out: Path) -> dict[Path, Manifest] | None:
    """The manifests, if they are there and of all inputs of the plan."""
    try:
        manifests = {out / split: _sound(out / split) for split in plan.splits}
    except UserError:
        return None  # the tasks' records will tell which shards to write again
    inputs = [(one.source, one.bytes, one.digest) for one in plan.inputs]
    same = all([(s.source, s.bytes, s.digest) for s in manifest.sources] == inputs for manifest in manifests.values())
    return manifests if same else None


def _sound(folder: Path) -> Manifest:
    dataset = Dataset(folder)
    dataset.check_files()
    dataset.check_indexes()
    return dataset.manifest


def _merge(plan: PreparationPlan, records: list[TaskRecord], out: Path) -> tuple[dict[Path, Manifest], list[str]]:
    """Write the manifests; they, by folder, and notes for the user."""
    manifests = dict(zip([out / split for split in plan.splits], merge(plan, records, out), strict=True))
    return manifests, notes_of(plan, records)
