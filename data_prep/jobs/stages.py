"""Preparation of a data set in stages: plan, scan and resolve (for deduplication), task, merge.

`prepare` runs all stages on this machine. The others run one stage each, for job arrays. A stage can be interrupted at
any time and run again.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from data_prep.cleaning import Grams
from data_prep.common.errors import UserError, interrupted
from data_prep.common.files import LockHeldError, file_lock, fsync_path, make_folder, write_file, write_json
from data_prep.common.urls import is_url
from data_prep.format import Dataset, TokenizerInfo
from data_prep.jobs import deduplication
from data_prep.jobs.merge import NoDocuments, Prepared, encoder_notes, merge
from data_prep.jobs.plan_inputs import extend, write_groups
from data_prep.jobs.preparation_plan import (
    InputLocations,
    PreparationPlan,
    PreparationSettings,
    check_out,
    evaluation_path,
    locations_path,
    open_plan,
    read_plan,
    write_plan,
)
from data_prep.jobs.process_pool import Work, Workers
from data_prep.jobs.task_documents import PreparationContext
from data_prep.jobs.task_progress import TaskProgress, TaskReport
from data_prep.jobs.task_worker import read_record, run_task, verified_record
from data_prep.sources import SourceInput, examine, how_to_convert
from data_prep.storage import Cache
from data_prep.tokenizer import SAMPLE_BYTES, CorpusSample, copy_files, describe_tokenizer, fetch, load, measure_unknown

MEMORY_BYTES = 512 << 20
Stage = Literal["scan", "resolve", "task"]
StageDisplay = Callable[[str, TaskProgress, int], None]
"""Progress display; arguments: a stage's name, its totals so far, and the bytes of all its input."""


@dataclass(frozen=True)
class PrepareRequest:
    """Inputs, tokenizer, output folder and settings. Documents must not contain texts of the `evaluation` files.

    The tokenizer is a folder, a tokenizer.json or a name of the Hub. If it cannot spell much of a sample of new inputs,
    UserError is raised, unless `allow_unknown` is set. For `allow_unreadable` and `unread_files`, see InputLocations.
    `memory_bytes` limits the memory of each process that searches for duplicates.
    """

    inputs: Sequence[SourceInput]
    tokenizer: str | Path
    out: Path
    settings: PreparationSettings = field(default_factory=PreparationSettings)
    evaluation: Sequence[Path] = ()
    evaluation_ngram: int = 13
    task_bytes: int | None = None
    allow_unknown: bool = False
    cache: Cache = field(default_factory=Cache)
    allow_unreadable: float = 0.01
    unread_files: dict[str, int] = field(default_factory=dict)
    memory_bytes: int = MEMORY_BYTES


def prepare(request: PrepareRequest, workers: Workers, show: StageDisplay | None = None) -> Prepared:
    """Turn text into the data set OUT, or OUT/train and OUT/valid with a valid fraction.

    The output does not depend on `workers`. If inputs are added to a finished data set, only those are processed.
    Raises UserError for bad input, an OUT with other input, a killed worker, or a full disk.
    """
    out = request.out
    with _planned(request) as (plan, notes, resumed):

        def run(work: Work, stage: str, numbers: Sequence[int]) -> list[Any]:
            return workers.run(work, numbers, out, _shown(show, stage, plan, numbers))

        by_size = sorted(range(len(plan.tasks)), key=lambda task: -plan.tasks[task].bytes)  # the largest first
        records = run(verified_record, "verify", range(len(plan.tasks)))
        missing = [task for task in by_size if records[task] is None]
        if missing and deduplication.duplicate_kinds(plan):
            run(deduplication.scan, "scan", by_size)
            run(_work("resolve", request.memory_bytes), "resolve", range(plan.ranges))
        for task, record in zip(missing, run(run_task, "task", missing), strict=True):
            records[task] = record
        try:
            prepared = merge(plan, records, out)
        except NoDocuments:
            if not resumed:  # this call wrote everything in OUT; remove it so that the next call can start
                for name in ("prep", *(["shards", "tokenizer"] if plan.splits == ["."] else plan.splits)):
                    shutil.rmtree(out / name, ignore_errors=True)
            raise
        return replace(prepared, new_tasks=len(missing), notes=notes + prepared.notes)


def plan_only(request: PrepareRequest) -> tuple[PreparationPlan, list[str]]:
    """Create or extend the plan of OUT without running its tasks. Returns the plan and notes."""
    with _planned(request) as (plan, notes, _):
        return plan, notes


def run_tasks(
    stage: Stage,
    out: Path,
    numbers: Sequence[int],
    workers: Workers,
    show: StageDisplay | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> list[str]:
    """Run tasks of a plan, scan them for duplicates, or resolve ranges: without numbers, all that are missing.

    Any number of processes and machines may work on one plan at the same time. A failure does not stop the others.
    After all of them, raises UserError with the reason of the first failure. Returns notes.
    """
    name = "range" if stage == "resolve" else "task"
    with _explained(out):
        plan = read_plan(out)
        if not plan.tasks:
            raise UserError(f"The plan of {out} has no tasks, since all of its inputs are empty; plan with others.")
        if stage != "task" and not deduplication.duplicate_kinds(plan):
            raise UserError(
                "The plan keeps duplicates, so there is nothing to scan or resolve; plan with --deduplicate."
            )
        count = plan.ranges if stage == "resolve" else len(plan.tasks)
        for number in numbers:
            if not 0 <= number < count:
                raise UserError(f"{out} has no {name} {number}; its {name}s are 0 to {count - 1}.")
        if stage == "resolve":  # valid results are only verified: a record may be older than damage to its files
            numbers = numbers or range(count)
        work = functools.partial(_attempt, _work(stage, memory_bytes))
        results = workers.run(work, numbers, out, _shown(show, stage, plan, numbers))
    failed = [(number, result) for number, result in zip(numbers, results, strict=True) if isinstance(result, str)]
    if failed:
        first, reason = failed[0]
        raise UserError(f"{len(failed)} of {len(numbers)} {name}s failed, the first being {first}: {reason}")
    return encoder_notes(results) if stage == "task" else []


def _work(stage: Stage, memory_bytes: int) -> Work:
    if stage == "resolve":
        return functools.partial(deduplication.resolve, max_bytes=memory_bytes)
    return deduplication.scan if stage == "scan" else run_task


def _attempt(work: Work, context: PreparationContext, task: int, report: TaskReport) -> Any:
    """The result of a task, or the message of its error."""
    try:
        return work(context, task, report)
    except UserError as error:
        return str(error)


def merge_tasks(out: Path, workers: Workers) -> Prepared:
    """Verify every task's record and write the manifests. Raises UserError naming the unfinished tasks."""
    with _explained(out):
        read_plan(out)  # raises before the lock is written
        with _locked(out):
            plan = read_plan(out)
            records = workers.run(verified_record, range(len(plan.tasks)), out, lambda progress: None)
            missing = [str(task) for task, record in enumerate(records) if record is None]
            if missing:
                names = ", ".join(missing[:20]) + (" ..." if len(missing) > 20 else "")
                raise UserError(f"{len(missing)} of {len(records)} tasks of {out} are not finished: {names}.")
            return merge(plan, records, out)


def unfinished_stages(out: Path, filters: Sequence[str] = (), trusted: bool = False) -> dict[str, dict[int, int]]:
    """The stages of OUT's plan that are still to run, in order, with the input bytes of their tasks by number.

    The numbers of "resolve" are ranges. The stage "merge" has no tasks.

    Trusts the records of tasks, without reading the tasks' files. Raises UserError if OUT has no plan, or one with
    filters from outside that are not in `filters`, or with addresses that need trust: see PreparationContext.
    """
    plan = (context := PreparationContext(out, filters, trusted)).plan
    plan.settings.cleaning.check_named(filters)
    stages: dict[str, dict[int, int]] = {}
    sizes = {number: task.bytes for number, task in enumerate(plan.tasks)}
    missing = {task: size for task, size in sizes.items() if not read_record(plan, task, out)}
    for number in {plan.tasks[task].input for task in missing}:
        context.input(number)
    if missing and deduplication.duplicate_kinds(plan):
        stages["scan"] = {task: size for task, size in sizes.items() if not deduplication.scan_record(plan, task, out)}
        stages["resolve"] = dict.fromkeys(deduplication.unresolved(plan, out), plan.range_bytes)
    stages = {stage: of_stage for stage, of_stage in (stages | {"task": missing}).items() if of_stage}
    if stages or not _is_merged(plan, out):
        stages["merge"] = {}
    return stages


def _is_merged(plan: PreparationPlan, out: Path) -> bool:
    """Whether all manifests are valid and have exactly the inputs of the plan."""
    inputs = [(given.source, given.bytes, given.digest) for given in plan.inputs]
    try:
        for split in plan.splits:
            dataset = Dataset(out / split)
            dataset.check_files()
            dataset.check_indexes()
            if [(source.source, source.bytes, source.digest) for source in dataset.manifest.sources] != inputs:
                return False
    except UserError:
        return False
    return True


@contextlib.contextmanager
def _planned(request: PrepareRequest) -> Iterator[tuple[PreparationPlan, list[str], bool]]:
    """Create or extend the plan of OUT, and lock OUT in the block.

    Yields the plan, notes, and whether OUT held a preparation before.
    """
    out = request.out
    with _explained(out), tempfile.TemporaryDirectory() as new:
        check_out(out)
        tokenizer = fetch(str(request.tokenizer), Path(new, "tokenizer"), out / "prep" / "tokenizer")
        info = describe_tokenizer(tokenizer)  # raises before the lock is written
        with _locked(out):
            resumed = check_out(out)
            plan, notes = _make_plan(request, tokenizer, info)
            yield plan, notes, resumed


def _make_plan(request: PrepareRequest, tokenizer: Path, info: TokenizerInfo) -> tuple[PreparationPlan, list[str]]:
    """Create or extend the plan of OUT with all inputs of the request, and write to OUT all that a task needs.

    Returns the plan and notes. Raises UserError if an input cannot be read or OUT was prepared with other settings.
    """
    out, cache = request.out, request.cache
    settings, notes, grams = request.settings, list[str](), b""
    if request.evaluation:
        found, notes = Grams.of_files(request.evaluation, request.evaluation_ngram, settings.cleaning.normalized)
        grams = found.to_bytes()
        settings = replace(settings, evaluation_sha256=hashlib.sha256(grams).hexdigest())
    plan = open_plan(out, info, settings)
    below = {given for given in request.inputs if given.kind not in ("hub", "pair") and _is_below(given.location, out)}
    inputs = [given for given in request.inputs if given not in below]
    if not inputs:  # OUT may lie in a folder of inputs
        raise UserError(f"All inputs lie in {out}, the folder of the output; choose another --out folder.")
    examined = [(source, examine(source, cache, settings.reading)) for source in inputs]
    known = len(plan.tasks)
    plan, locations, groups = extend(plan, out, examined, request.task_bytes)
    if len(plan.tasks) > known:
        sample = CorpusSample(inputs, settings.reading, SAMPLE_BYTES, cache, SAMPLE_BYTES // 16)
        texts = map(settings.cleaning.normalized, sample)
        unknown = measure_unknown(load(tokenizer), texts, info.special_ids.get("unk"))
        notes = notes + unknown.check(request.allow_unknown)
    if below:
        notes = [*notes, f"{min(below).location} is not read: {out} is the folder of the output."]
    unread = {name: size for name, size in request.unread_files.items() if not _is_below(name, out)}
    if folders := [name for name in unread if name.endswith("/")]:
        more = f" and {len(folders) - 1:,} more" if len(folders) > 1 else ""
        notes.append(f"Folders of Maskwright in the input are not read: {folders[0]}{more}.")
    unread = {name: size for name, size in unread.items() if name not in folders}
    if unread:
        first = max(unread, key=unread.__getitem__)
        number = f"{len(unread):,} files in the input are" if len(unread) > 1 else "1 file in the input is"
        notes.append(f"{number} not read. The largest is {first}. {how_to_convert(first)}.")
    place = InputLocations(locations, str(cache.folder), cache.max_bytes, request.allow_unreadable, unread)
    write_json(locations_path(out), asdict(place))  # first: it identifies OUT as the folder of a preparation
    kept = out / "prep" / "tokenizer"
    if tokenizer not in (Path(request.tokenizer), kept):  # it was fetched to a temporary folder
        copy_files(tokenizer, kept)
        if (record := tokenizer / "hub.json").is_file():
            write_file(kept / record.name, record.read_bytes())
    write_groups(groups, out)
    for named in (locations, *([file.location for file in files] for files in groups)):
        if not all(map(os.path.isabs, named)):
            with contextlib.suppress(OSError):  # `prep task` then asks for --yes
                make_folder(cache.record_of(named))
    for folder in ("tasks", "scan"):
        (out / "prep" / folder).mkdir(exist_ok=True)
    if grams:
        write_file(evaluation_path(out), grams)
    for split in plan.splits:
        copy_files(tokenizer, out / split / "tokenizer")
        (out / split / "shards").mkdir(exist_ok=True)
        fsync_path(out / split)
    write_plan(plan, out)  # last: if a plan exists, so does everything that it needs
    return plan, notes


def _is_below(location: str, out: Path) -> bool:
    return not is_url(location) and Path(os.path.realpath(location)).is_relative_to(os.path.realpath(out))


def _shown(show: StageDisplay | None, stage: str, plan: PreparationPlan, numbers: Sequence[int]) -> TaskReport:
    total = sum(plan.range_bytes if stage == "resolve" else plan.tasks[number].bytes for number in numbers)
    return lambda progress: show(stage, progress, total) if show else None


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Lock the folder against a second preparation. The system releases the lock when this process exits."""
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
