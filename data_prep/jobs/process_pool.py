"""Process pool for tasks on this machine, with progress.

After an interrupt, tasks stop at the end of their batch. Processes that do not stop within seconds are killed.
"""

import atexit
import contextlib
import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import astuple, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from data_prep.errors import UserError
from data_prep.jobs.task_progress import Report, TaskProgress
from data_prep.processes import interrupt_blocked, start_worker

if TYPE_CHECKING:
    from data_prep.jobs.workbench import Workbench

Work = Callable[["Workbench", int, Report], Any]
"""A module-level function that runs one task and reports its totals."""

_SLOTS = 4  # fields of a TaskProgress, in the memory shared with the workers
_TICK_SECONDS = 0.2
_STOP_SECONDS = 5
_EARLY = 4  # processes started before there is work


class Workers:
    """Worker processes for tasks; a context manager. A single worker runs in this process.

    The first processes start immediately and import their modules while this process plans the work.
    """

    def __init__(self, count: int) -> None:
        self._pool: ProcessPoolExecutor | None = None
        if count > 1:
            spawn = multiprocessing.get_context("spawn")
            # No lock: a killed worker would keep it. If the last number is not 0, the workers stop.
            self._counters: Any = spawn.RawArray("q", _SLOTS * count + 1)
            self._others = set(multiprocessing.active_children())
            self._pool = ProcessPoolExecutor(count, spawn, _start, (self._counters, spawn.Value("i", 0)))
            with interrupt_blocked():
                for _ in range(min(count, _EARLY)):
                    self._pool.submit(_import)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._pool is None:
            return
        if kind is None:
            self._pool.shutdown()
        else:
            self._stop(self._pool)

    def _stop(self, pool: ProcessPoolExecutor) -> None:
        """Stop the workers after their batch. Kill slow ones (such as a download), or all at a second Ctrl-C.

        Unfinished work never counts as finished. Always waits for the pool's thread: Python's exit would write to the
        pipe that the thread closes.
        """
        self._counters[-1] = True
        running = set(multiprocessing.active_children()) - self._others
        ended = threading.Event()

        def shut_down() -> None:
            try:
                pool.shutdown(cancel_futures=True)
            finally:
                ended.set()

        threading.Thread(target=shut_down, daemon=True).start()  # a join here would not survive a second Ctrl-C
        with contextlib.suppress(KeyboardInterrupt):
            ended.wait(_STOP_SECONDS)
        if not ended.is_set():
            for process in running:
                process.kill()
        ended.wait()

    def run(self, work: Work, tasks: Sequence[int], out: Path, on_progress: Report) -> list[Any]:
        """Run `work` for these tasks of OUT's plan, started in the given order; return the results.

        Calls `on_progress` with the totals of all tasks several times a second. Raises UserError for a killed worker,
        and any exception of `work`.
        """
        if self._pool is None:
            return _run_here(work, tasks, out, on_progress)
        before = self._totals()
        try:
            with interrupt_blocked():
                futures = [self._pool.submit(_work, work, out, task) for task in tasks]
            ended: SimpleQueue[Future] = SimpleQueue()  # `wait` checks all futures each time: too slow
            for future in futures:
                future.add_done_callback(ended.put)
            left = len(futures)
            while left:
                with contextlib.suppress(Empty):
                    ended.get(timeout=_TICK_SECONDS).result()
                    left -= 1
                on_progress(TaskProgress(*(now - then for now, then in zip(self._totals(), before, strict=True))))
            return [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise UserError(
                "A worker process was killed, perhaps because memory ran out. Finished work is kept: run the same "
                "command again, with fewer --workers if this happens again."
            ) from error

    def _totals(self) -> list[int]:
        return [sum(self._counters[slot:-1:_SLOTS]) for slot in range(_SLOTS)]


def _run_here(work: Work, tasks: Sequence[int], out: Path, on_progress: Report) -> list[Any]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    bench = _bench(out)
    totals = PoolTotals(on_progress)
    return [work(bench, task, totals.of_next_task()) for task in tasks]


class PoolTotals:
    """Sum of the progress reports of consecutive tasks."""

    def __init__(self, on_progress: Report) -> None:
        self._on_progress = on_progress
        self._finished = self._current = TaskProgress()

    def of_next_task(self) -> Report:
        self._finished, self._current = _sum(self._finished, self._current), TaskProgress()
        return self._report

    def _report(self, progress: TaskProgress) -> None:
        # The last report of a task has no text_bytes.
        self._current = progress if progress.text_bytes else replace(progress, text_bytes=self._current.text_bytes)
        self._on_progress(_sum(self._finished, self._current))


def _sum(one: TaskProgress, other: TaskProgress) -> TaskProgress:
    return TaskProgress(*map(sum, zip(astuple(one), astuple(other), strict=True)))


def _bench(out: Path) -> "Workbench":
    from data_prep.jobs.workbench import Workbench

    return Workbench(out)


class _Stopped(Exception):
    """The parent process asked the tasks to stop."""


_counters: Any
_totals: PoolTotals
_benches: dict[tuple[Path, int, int], "Workbench"] = {}


def _start(counters: Any, workers: Any) -> None:
    global _counters, _totals
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    start_worker()
    atexit.register(os._exit, 0)  # skips the teardown of modules, which takes 0.1 s
    gc.set_threshold(100_000)  # rows make no cycles; frequent collection took 3% of the time
    with workers.get_lock():
        first = workers.value * _SLOTS
        workers.value += 1
    _counters = counters

    def publish(progress: TaskProgress) -> None:
        if counters[-1]:
            raise _Stopped
        counters[first : first + _SLOTS] = astuple(progress)

    _totals = PoolTotals(publish)


def _import() -> None:
    import data_prep.jobs.task_worker  # noqa: F401

    gc.freeze()  # imported modules are never collected


def _work(work: Work, out: Path, task: int) -> Any:
    from data_prep.jobs.preparation_plan import plan_path

    plan = plan_path(out).stat()  # a new plan is a new file; reading a long plan for each task is slow
    key = (out, plan.st_ino, plan.st_mtime_ns)
    if key not in _benches:
        _benches.clear()
        _benches[key] = _bench(out)
    return work(_benches[key], task, _totals.of_next_task())
