"""Commands of our modules, worker processes, signals, processes that end with their parent, and answers of programs."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import util
from multiprocessing.context import SpawnContext
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TypeVar

from data_prep.common.errors import UserError

_ROOT = str(Path(__file__).parents[2])
_RUN_MODULE = "import sys; sys.path[0] or sys.path.pop(0); from runpy import run_module; "
_RUN_MODULE += "run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
_BLANK = " \t\r\n"  # str.strip would also remove the separators that squeue is asked for
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def module_command(
    module: str, *arguments: str, python: str = "", version: tuple[int, ...] = sys.version_info[:2]
) -> list[str]:
    """The command that runs a module of ours. Files in the working folder may have any names.

    `python -m` looks for modules in the working folder first. `-P` prevents this from Python 3.11 on; before, a
    program removes the folder from the path.

    Args:
        python: another interpreter, of this version or newer.
    """
    words = [python or sys.executable]
    if _is_source_checkout():
        return [*words, "-m", module, *arguments]
    return [*words, *(["-P", "-m"] if version >= (3, 11) else ["-c", _RUN_MODULE]), module, *arguments]


def _is_source_checkout() -> bool:
    """Whether the working folder is our source, without which our modules may not be found."""
    return sys.path[0] == _ROOT == os.getcwd()


def spawn_context() -> SpawnContext:
    """The context of worker processes, which never import from the working folder. They get their path from here."""
    # With `-I`, Python 3.10 ignores PYTHONPATH, too; but a spawned process gets all of sys.path from its parent.
    flag = "-P" if sys.version_info >= (3, 11) else "-I"
    if not _is_source_checkout():
        util._args_from_interpreter_flags = lambda: [*subprocess._args_from_interpreter_flags(), flag]  # type: ignore[attr-defined]
    return multiprocessing.get_context("spawn")


def ordered_map(function: Callable[[_Item], _Result], items: Sequence[_Item], workers: int) -> Iterator[_Result]:
    """function(item) for each item, in order, computed by at most `workers` processes, or here for one worker.

    Raises UserError if a process is killed.
    """
    workers = min(workers, len(items))
    if workers <= 1:
        yield from map(function, items)
        return
    pool = ProcessPoolExecutor(workers, spawn_context(), start_worker)
    try:
        with interrupt_blocked():
            results = pool.map(function, items)
        yield from results
    except BrokenProcessPool as error:
        raise UserError("A worker process was killed, maybe for want of memory; use fewer --workers.") from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def interrupt_blocked() -> Iterator[None]:
    """Block Ctrl-C: processes started in the block never get it, not even before `start_worker`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def uninterrupted(forward: Callable[[], object] | None = None) -> Iterator[None]:
    """Delay Ctrl-C until the block ends, for packages that treat KeyboardInterrupt as their own failure.

    `forward` is called at each Ctrl-C, to pass it on.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # other threads and workers are never interrupted
        return
    signals: list[tuple[int, FrameType | None]] = []

    def delay(*arguments: Any) -> None:
        signals.append(arguments)
        if forward:
            forward()

    signal.signal(signal.SIGINT, delay)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if signals:
            handler(*signals[-1])


def start_worker() -> None:
    """Prepare a process of a pool: ignore Ctrl-C, which only the parent handles, and end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    die_with_parent(parent=parent.pid)


def die_with_parent(number: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """Ask Linux to send this process a signal when its parent dies, so that a killed launcher leaves no orphan.

    If `parent`, the process that started this one, is dead already, this process ends.
    """
    set_parent_death_signal = 1
    parent = parent or os.getppid()
    try:
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, number)
    except (OSError, AttributeError):
        return  # not Linux
    if os.getppid() != parent:  # it died before the request
        os._exit(1)


def write_in_handler(line: str, descriptor: int = 2) -> None:
    """Write a line from a signal handler, where `print` raises RuntimeError if it interrupts another print."""
    with contextlib.suppress(OSError):
        os.write(descriptor, f"{line}\n".encode(errors="replace"))


def leave(code: int) -> NoReturn:
    """Flush the output and end this process without the shutdown of the interpreter.

    The threads of the process group sometimes abort a shutdown ("terminate called without an active exception"). Then
    a finished run would have the exit code of a crash.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class ProgramAnswer(NamedTuple):
    """The output of a program, and whether it exited with 0."""

    works: bool
    text: str


def ask_program(
    *command: str, seconds: float | None = 8.0, variables: Mapping[str, str] | None = None
) -> ProgramAnswer | None:
    """Run a program and return its output, or its error messages if it fails; None if it is not installed.

    `variables` are added to the environment that it gets.
    """
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(variables or {})},
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        return ProgramAnswer(False, f"{command[0]} did not answer within {seconds:g} s")
    except OSError as error:
        return ProgramAnswer(False, f"{command[0]} cannot be run ({error.strerror})")
    works = result.returncode == 0
    text = (result.stdout if works else result.stderr or result.stdout).strip(_BLANK)
    return ProgramAnswer(works, text if text or works else f"{command[0]} exited with {result.returncode}")
