"""Run checks in separate processes, so that a check that crashes or hangs is only a finding."""

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe, wait

from data_prep.errors import UserError, one_line
from data_prep.processes import die_with_parent
from launchers.doctor.finding import Check, Finding, presentable

_AT_ONCE = 4
_GRACE_SECONDS = 3.0  # for a check that is ended to remove its files


@dataclass
class _Running:
    """A check's process. Its findings come through `answers`, which is closed when the process ends."""

    number: int
    check: Check
    pid: int
    answers: Connection
    deadline: float
    findings: list[Finding] = field(default_factory=list)


def run_checks(checks: Sequence[Check]) -> Iterator[Finding]:
    """The findings of the checks, in their order, each as soon as those before it are complete.

    A check that raises, is killed or takes too long fails; what it had found before is kept. Secrets in addresses are
    removed.
    """
    waiting, running, complete = deque(enumerate(checks)), list[_Running](), dict[int, list[Finding]]()
    shown = 0
    try:
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                running.append(_start(*waiting.popleft()))
            soonest = min(one.deadline for one in running)
            ready = wait([one.answers for one in running], max(0.0, soonest - time.monotonic()))
            for one in list(running):
                is_over = one.answers in ready and _take(one)
                if not is_over and time.monotonic() > one.deadline:
                    one.findings.append(_overdue(one.check))
                    is_over = True
                if is_over:
                    running.remove(one)
                    complete[one.number] = one.findings
                    _end(one)
            while shown in complete:
                group = checks[shown].group
                yield from (presentable(replace(finding, group=group)) for finding in complete[shown])
                shown += 1
    finally:
        for one in running:
            _end(one)


def _overdue(check: Check) -> Finding:
    return Finding(
        check.name,
        "fail",
        f"no answer within {check.seconds:g} s",
        "something hangs that it uses: most often a network file system or a server",
    )


def _start(number: int, check: Check) -> _Running:
    answers, theirs = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            _child(check, theirs)
        os._exit(0)  # without the parent's exit handlers
    theirs.close()
    return _Running(number, check, pid, answers, time.monotonic() + check.seconds)


def _child(check: Check, answers: Connection) -> None:
    os.setsid()  # so that the processes which the check starts can be killed with it
    die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit()))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # libraries must not print into the report
        os.dup2(null, descriptor)
    for finding in _findings(check):
        answers.send(finding)
    answers.send(None)


def _findings(check: Check) -> Iterator[Finding]:
    try:
        yield from check.look()
    except UserError as error:
        yield Finding(check.name, "fail", str(error))
    except Exception as error:
        yield Finding(check.name, "fail", one_line(f"{type(error).__name__}: {error}"), "the check itself failed here")


def _take(one: _Running) -> bool:
    """Keep what a check sends; whether it is over."""
    try:
        finding = one.answers.recv()
    except EOFError:
        finding = None
        one.findings.append(Finding(one.check.name, "fail", "the check's process was killed"))
    if finding is not None:
        one.findings.append(finding)
    return finding is None


def _end(one: _Running) -> None:
    """End the process and those that it started; one that hangs in the kernel is left there."""
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
