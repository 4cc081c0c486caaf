"""Checks run in processes of their own, so that one that crashes or hangs is a finding and nothing else."""

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait

from data_prep.errors import UserError
from data_prep.processes import die_with_parent
from launchers.doctor.finding import Check, Finding, presentable

AT_ONCE = 4
Progress = Callable[[int, Sequence[str]], None]
_GRACE_SECONDS = 3.0  # for a check that is given up to take its files away


@dataclass
class _Running:
    """A check's process; its findings come through `answers`, which ends with it."""

    number: int
    check: Check
    pid: int
    answers: Connection
    deadline: float


def run_checks(checks: Sequence[Check], progress: Progress | None = None) -> list[Finding]:
    """All that the checks find, in their order, addresses without their secrets.

    A check that raises, is killed or takes longer than its seconds fails; what it had found before is kept. `progress`
    is told how many are over, and the names of those that run.
    """
    found: list[list[Finding]] = [[] for _ in checks]
    waiting = deque(enumerate(checks))
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                running.append(_start(*waiting.popleft()))
            if progress:
                progress(len(checks) - len(waiting) - len(running), [one.check.name for one in running])
            soonest = min(one.deadline for one in running)
            ready = wait([one.answers for one in running], max(0.0, soonest - time.monotonic()))
            for one in list(running):
                over = one.answers in ready and _take(one, found[one.number])
                if not over and time.monotonic() > one.deadline:
                    found[one.number].append(_overdue(one.check))
                    over = True
                if over:
                    running.remove(one)
                    _end(one)
        if progress:
            progress(len(checks), [])
    finally:
        for one in running:
            _end(one)
    return [
        presentable(replace(finding, group=check.group))
        for check, those in zip(checks, found, strict=True)
        for finding in those
    ]


def _overdue(check: Check) -> Finding:
    return Finding(
        check.name,
        "fail",
        f"no answer within {check.seconds:g} s",
        "whatever it looks at hangs: a network file system or a server that is away, most often",
    )


def _start(number: int, check: Check) -> _Running:
    answers, theirs = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            _child(check, theirs)
        os._exit(0)  # nothing of the parent's may run its end here
    theirs.close()
    return _Running(number, check, pid, answers, time.monotonic() + check.seconds)


def _child(check: Check, answers: Connection) -> None:
    os.setsid()  # whatever the check starts ends with it
    die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit()))
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # what libraries print does not belong into the report
        os.dup2(nothing, descriptor)
    for finding in _findings(check):
        answers.send(finding)
    answers.send(None)


def _findings(check: Check) -> Iterator[Finding]:
    try:
        yield from check.look()
    except UserError as error:
        yield Finding(check.name, "fail", str(error))
    except Exception as error:
        words = " ".join(str(error).split())[:300]
        yield Finding(check.name, "fail", f"{type(error).__name__}: {words}", "the check itself came to an end here")


def _take(one: _Running, found: list[Finding]) -> bool:
    """Keep what a check sends; whether it is over."""
    try:
        finding = one.answers.recv()
    except EOFError:
        found.append(Finding(one.check.name, "fail", "the check's process was killed"))
        return True
    if finding is not None:
        found.append(finding)
    return finding is None


def _end(one: _Running) -> None:
    """End the process and what it started; one that hangs in the kernel is left to it."""
    one.answers.close()
    deadline = time.monotonic() + _GRACE_SECONDS
    with contextlib.suppress(ProcessLookupError):
        os.kill(one.pid, signal.SIGTERM)
    gone = False
    while not gone and time.monotonic() < deadline:
        gone = os.waitpid(one.pid, os.WNOHANG)[0] == one.pid
        if not gone:
            time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(one.pid, signal.SIGKILL)
    if not gone:
        time.sleep(0.05)
        os.waitpid(one.pid, os.WNOHANG)
