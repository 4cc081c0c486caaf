"""Tasks on several processes of this machine, with their progress; interrupted, the tasks stop after their batch."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, TypeVar

from data_prep.errors import UserError
from data_prep.processes import start_worker
from data_prep.worker import Progress, Workbench

Result = TypeVar("Result")
Work = Callable[[Workbench, int, Callable[[Progress], None]], Result]
OnProgress = Callable[[Progress], None]

_SLOTS = 4  # numbers of a Progress, in the memory shared with the workers
_TICK_SECONDS = 0.2


def run_tasks(work: Work, tasks: Sequence[int], out: Path, workers: int, on_progress: OnProgress) -> list[Any]:
    """The results of `work`, a function of a module, for these tasks of OUT's plan; started in the order given.

    `on_progress` gets the totals over the tasks several times a second. One worker is this process itself. Raises
    UserError for a killed worker, and whatever `work` raises.
    """
    if min(workers, len(tasks)) <= 1:
        return _run_here(work, tasks, out, on_progress)
    spawn = multiprocessing.get_context("spawn")
    # Without a lock, which a killed worker would keep.
    counters: Any = spawn.RawArray("q", _SLOTS * len(tasks) + 1)
    with ProcessPoolExecutor(min(workers, len(tasks)), spawn, _start_worker, (out, counters)) as pool:
        try:
            futures = [pool.submit(_work, work, task, slot) for slot, task in enumerate(tasks)]
            pending = set(futures)
            while pending:
                done, pending = wait(pending, _TICK_SECONDS, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                on_progress(_sum(counters))
            return [future.result() for future in futures]
        except BaseException as error:
            counters[-1] = 1  # the workers stop after their batch
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise UserError(
                    "A worker process was killed, perhaps for want of memory; what is finished is kept: run the same "
                    "command again, with fewer --workers if it repeats itself."
                ) from error
            raise


def _run_here(work: Work, tasks: Sequence[int], out: Path, on_progress: OnProgress) -> list[Any]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    bench = Workbench(out)
    seen = {task: Progress() for task in tasks}

    def reporter(task: int) -> Callable[[Progress], None]:
        def report(progress: Progress) -> None:
            seen[task] = progress if progress.text_bytes else replace(progress, text_bytes=seen[task].text_bytes)
            on_progress(Progress(*(sum(column) for column in zip(*map(astuple, seen.values()), strict=True))))

        return report

    return [work(bench, task, reporter(task)) for task in tasks]


def _sum(counters: Any) -> Progress:
    return Progress(*(sum(counters[slot:-1:_SLOTS]) for slot in range(_SLOTS)))


class _Stopped(Exception):
    """The parent process asked the tasks to stop."""


_bench: Workbench
_counters: Any = None


def _start_worker(out: Path, counters: Any) -> None:
    global _bench, _counters
    _counters = counters
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    start_worker()
    _bench = Workbench(out)


def _work(work: Work, task: int, slot: int) -> Any:
    def report(progress: Progress) -> None:
        if _counters[-1]:
            raise _Stopped
        first = slot * _SLOTS
        text_bytes = progress.text_bytes or _counters[first + 1]
        _counters[first : first + _SLOTS] = [
            progress.file_bytes, text_bytes, progress.documents, progress.tokens
        ]  # fmt: skip

    return work(_bench, task, report)
