"""Process pool for tasks on this machine, with progress.

After an interrupt, tasks stop at the end of their batch. Processes that do not stop within seconds are killed.
"""

import atexit
import contextlib
import functools
import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from data_prep.common.errors import UserError
from data_prep.common.processes import interrupt_blocked, spawn_context, start_worker
from data_prep.jobs.task_progress import TaskProgress, TaskReport

if TYPE_CHECKING:
    from data_prep.jobs.task_documents import PreparationContext


Work = Callable[["PreparationContext", int, TaskReport], Any]
"""A module-level function that runs one task and reports its totals."""

_SLOTS = len(TaskProgress())  # numbers of a worker in the shared memory
_TICK_SECONDS = 0.2
_STOP_SECONDS = 5
_EARLY = 4  # processes started before there is work


class Workers:
    """Worker processes for tasks; a context manager. A single worker runs in this process.

    The first processes start immediately and import their modules while this process plans the work. A filter of
    the plan that runs code from outside is loaded only if `filters` names it. For `trusted`, see PreparationContext.
    """

    def __init__(self, count: int, filters: Sequence[str] = (), trusted: bool = False) -> None:
        self._agreed = tuple(filters), trusted
        self._pool: ProcessPoolExecutor | None = None
        if count > 1:
            spawn = spawn_context()
            # No lock: a killed worker would never release it. If the last number is not 0, the workers stop.
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

        Always waits for the pool's thread: Python's exit would write to the pipe that the thread closes.
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

    def run(self, work: Work, tasks: Sequence[int], out: Path, on_progress: TaskReport) -> list[Any]:
        """Run `work` for these tasks of OUT's plan, started in the given order; return the results.

        Calls `on_progress` with the totals of all tasks several times a second. Raises UserError for a killed worker,
        and any exception of `work`.
        """
        if self._pool is None:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
            from data_prep.jobs.task_documents import PreparationContext

            context, totals = PreparationContext(out, *self._agreed), _Totals(on_progress)
            return [work(context, task, totals.of_next_task()) for task in tasks]
        before = self._totals()
        try:
            with interrupt_blocked():
                futures = [self._pool.submit(_work, work, out, self._agreed, task) for task in tasks]
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


class _Totals:
    """Sum of the progress reports of consecutive tasks."""

    def __init__(self, on_progress: TaskReport) -> None:
        self._on_progress = on_progress
        self._finished = self._current = TaskProgress()

    def of_next_task(self) -> TaskReport:
        self._finished, self._current = self._finished.plus(self._current), TaskProgress()
        return self._report

    def _report(self, progress: TaskProgress) -> None:
        self._current = TaskProgress(*map(max, self._current, progress))  # totals never go back
        self._on_progress(self._finished.plus(self._current))


class _Stopped(Exception):
    """The parent process asked the tasks to stop."""


_totals: _Totals  # of a worker process


def _start(counters: Any, workers: Any) -> None:
    global _totals
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    start_worker()
    atexit.register(os._exit, 0)  # skips the teardown of modules, which takes 0.1 s
    gc.set_threshold(100_000)  # rows make no cycles; frequent collection takes 3% of the time
    with workers.get_lock():
        first = workers.value * _SLOTS
        workers.value += 1

    def publish(progress: TaskProgress) -> None:
        if counters[-1]:
            raise _Stopped
        counters[first : first + _SLOTS] = progress

    _totals = _Totals(publish)


def _import() -> None:
    import data_prep.jobs.task_worker  # noqa: F401

    gc.freeze()  # imported modules are never collected


def _work(work: Work, out: Path, agreed: tuple[tuple[str, ...], bool], task: int) -> Any:
    from data_prep.jobs.preparation_plan import plan_path

    plan = plan_path(out).stat()  # a new plan is a new file; reading a long plan for each task is slow
    return work(_context_of(out, agreed, plan.st_ino, plan.st_mtime_ns), task, _totals.of_next_task())


@functools.lru_cache(1)
def _context_of(out: Path, agreed: tuple[tuple[str, ...], bool], inode: int, changed: int) -> "PreparationContext":
    from data_prep.jobs.task_documents import PreparationContext

    return PreparationContext(out, *agreed)
