"""Worker processes, and processes that end with the one that started them."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import FrameType
from typing import NoReturn, TypeVar

from data_prep.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(function: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """function(item) of each item, in order, computed by at most `workers` processes, or here if one is enough.

    Raises UserError if a process is killed.
    """
    workers = min(workers, len(items))
    if workers <= 1:
        yield from map(function, items)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), start_worker)
    try:
        with deaf():
            results = pool.map(function, items)
        yield from results
    except BrokenProcessPool as error:
        raise UserError("A worker process was killed, maybe for want of memory; use fewer --workers.") from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Processes that are started meanwhile never get Ctrl-C, not even before `start_worker`; here it has to wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until this ends, for packages that would take KeyboardInterrupt for a failure of their own."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # no other thread is interrupted, and a worker never is
        return
    heard: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *signalled: heard.append(signalled))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if heard:
            handler(*heard[-1])


def start_worker() -> None:
    """Prepare a process of a pool: Ctrl-C, which reaches the whole group, is left to the parent to decide upon."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    die_with_parent(parent=parent.pid)


def die_with_parent(number: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """Ask Linux to send this process a signal when its parent dies, so that a killed launcher leaves no orphan.

    `parent` is the process that started this one, where that is known: if it has died before, this process ends.
    """
    set_parent_death_signal = 1
    parent = parent or os.getppid()
    try:
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, number)
    except (OSError, AttributeError):
        return  # not Linux
    if os.getppid() != parent:  # it died before the request
        os._exit(1)


def leave(code: int) -> NoReturn:
    """End this process at once, its output flushed.

    The process group has threads of its own; taking the interpreter down around them now and then aborts it ("terminate
    called without an active exception"), and a finished run would end with the exit code of a crash.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
