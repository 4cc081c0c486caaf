"""Preparing a data set on this machine: plan, one process a core over the tasks, merge."""

import contextlib
import fcntl
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any

from data_prep.errors import DamagedData, UserError
from data_prep.files import fsync_folder
from data_prep.format import Dataset, Manifest
from data_prep.merge import merge
from data_prep.plan import Plan, Settings, freeze, make_plan
from data_prep.tokenizer import copy_files, describe
from data_prep.worker import Progress, TaskRecord, run_task

_SLOTS = 4  # numbers of a Progress, in the memory shared with the workers
_TICK_SECONDS = 0.2


@dataclass(frozen=True)
class Prepared:
    """What a preparation gave: manifests by folder, whether it had been finished before, and notes for the user."""

    manifests: dict[Path, Manifest]
    already_finished: bool
    notes: list[str]


def prepare(
    paths: list[Path],
    tokenizer: Path,
    out: Path,
    workers: int,
    settings: Settings,
    on_progress: Callable[[Progress, int], None] = lambda progress, total_bytes: None,
) -> Prepared:
    """Turn text files into the data set OUT, or OUT/train and OUT/valid with a valid fraction.

    May be interrupted at any moment and called again with the same arguments; the output is then the same, byte for
    byte, and does not depend on `workers`. `on_progress` gets the totals and the bytes of all input files. Raises
    UserError for bad input, an OUT that belongs to other input, a killed worker, or a full disk.
    """
    info = describe(tokenizer)
    try:
        plan = make_plan(paths, info, settings)
        (out / "prep" / "tasks").mkdir(parents=True, exist_ok=True)
        with _locked(out):
            freeze(plan, out)
            if (manifests := _finished(plan, out)) is not None:
                return Prepared(manifests, True, [])
            for split in plan.splits:
                copy_files(tokenizer, out / split / "tokenizer")
                (out / split / "shards").mkdir(exist_ok=True)
                fsync_folder(out / split)
            records = _run_tasks(plan, paths, out, workers, on_progress)
            return Prepared(_merge_or_clear(plan, records, out), False, _notes(records))
    except BrokenProcessPool as error:
        raise UserError(
            "A worker process was killed, perhaps for want of memory; what is finished is kept: run the same command "
            "again, with fewer --workers if it repeats itself."
        ) from error
    except OSError as error:
        raise UserError(
            f"Reading or writing {error.filename or out} failed: {error.strerror or error}; what is finished is kept, "
            "run the same command again."
        ) from error


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Keeps a second preparation out of the folder; the system releases the lock however this process ends."""
    with open(out / "prep" / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"Another process is preparing {out} now; wait for it or stop it.") from None
        yield


def _finished(plan: Plan, out: Path) -> dict[Path, Manifest] | None:
    try:
        return {out / split: Dataset(out / split).manifest for split in plan.splits}
    except DamagedData:
        return None  # the tasks' records will tell which shards to write again
    except UserError:
        return None


def _merge_or_clear(plan: Plan, records: list[TaskRecord], out: Path) -> dict[Path, Manifest]:
    try:
        return dict(zip([out / split for split in plan.splits], merge(plan, records, out), strict=True))
    except UserError:
        # No usable data set can come of this plan, and the folder must not stand in the way of the next one.
        for name in ("prep", "quarantine", "shards", "tokenizer", *plan.splits):
            if name != ".":
                shutil.rmtree(out / name, ignore_errors=True)
        raise


def _notes(records: list[TaskRecord]) -> list[str]:
    return sorted({record.note for record in records if record.note})


def _run_tasks(
    plan: Plan, paths: list[Path], out: Path, workers: int, on_progress: Callable[[Progress, int], None]
) -> list[TaskRecord]:
    """Records of all tasks, the largest files being started first."""
    spawn = multiprocessing.get_context("spawn")
    counters: Any = spawn.RawArray(
        "q", _SLOTS * len(plan.tasks) + 1
    )  # without a lock, which a killed worker would keep
    total = sum(source.bytes for source in plan.inputs)
    sizes = [plan.inputs[task.input].bytes for task in plan.tasks]
    order = sorted(range(len(plan.tasks)), key=lambda task: -sizes[task])
    with ProcessPoolExecutor(min(workers, len(order)), spawn, _start_worker, (counters,)) as pool:
        try:
            futures = {task: pool.submit(_work, plan, task, paths[plan.tasks[task].input], out) for task in order}
            pending = set(futures.values())
            while pending:
                done, pending = wait(pending, _TICK_SECONDS, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                on_progress(_sum(counters), total)
            return [futures[task].result() for task in range(len(plan.tasks))]
        except BaseException:
            counters[-1] = 1  # the workers stop after their batch
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _sum(counters: Any) -> Progress:
    return Progress(*(sum(counters[slot:-1:_SLOTS]) for slot in range(_SLOTS)))


class _Stopped(Exception):
    """The parent process asked the tasks to stop."""


_counters: Any = None


def _start_worker(counters: Any) -> None:
    global _counters
    _counters = counters
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _work(plan: Plan, task: int, path: Path, out: Path) -> TaskRecord:
    def report(progress: Progress) -> None:
        if _counters[-1]:
            raise _Stopped
        first = task * _SLOTS
        text_bytes = progress.text_bytes or _counters[first + 1]
        _counters[first : first + _SLOTS] = [
            progress.file_bytes, text_bytes, progress.documents, progress.tokens
        ]  # fmt: skip

    return run_task(plan, task, path, out, report)
