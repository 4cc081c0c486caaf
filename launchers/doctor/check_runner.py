"""Checks, and their execution in separate processes: a crash or a hang becomes a finding."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe

from data_prep.common.errors import UserError, one_line, printable
from data_prep.common.processes import die_with_parent
from data_prep.common.urls import redact
from launchers.local import Finding

_GRACE_SECONDS = 3.0  # for an ended check to delete its files


@dataclass(frozen=True)
class Check:
    """One check. It may yield several findings, and is killed after `seconds`."""

    group: str
    name: str
    findings: Callable[[], Iterable[Finding]] = field(repr=False)
    seconds: float = 10.0


def run_checks(checks: Iterable[Check]) -> Iterator[Finding]:
    """Run the checks in order, and yield their findings (see presentable).

    A check that raises, is killed or exceeds its time limit fails. Its earlier findings are kept.
    """
    for check in checks:
        yield from (presentable(finding, check.group) for finding in _run(check))


def presentable(finding: Finding, group: str) -> Finding:
    """Set the group of a finding. Remove secrets in addresses, and control characters."""
    value, advice = (printable(redact(text)) for text in (finding.value, finding.advice))
    return replace(finding, name=printable(finding.name), value=value, advice=advice, group=group)


def _run(check: Check) -> list[Finding]:
    answers, theirs = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            _child(check, theirs)
        finally:
            os._exit(0)  # after an exception too, and without the parent's exit handlers
    theirs.close()
    findings: list[Finding] = []
    deadline = time.monotonic() + check.seconds
    try:
        while answers.poll(max(0.0, deadline - time.monotonic())):
            finding = answers.recv()
            if finding is None:
                return findings
            findings.append(finding)
    except EOFError:
        return [*findings, Finding(check.name, "fail", "the check's process was killed")]
    finally:
        answers.close()
        _end(pid)
    advice = "something hangs that it uses: most often a network file system or a server"
    return [*findings, Finding(check.name, "fail", f"no answer within {check.seconds:g} s", advice)]


def _child(check: Check, answers: Connection) -> None:
    os.setsid()  # so that the processes which the check starts can be killed with it
    die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit()))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # libraries must not print into the report
        os.dup2(null, descriptor)
    try:
        for finding in check.findings():
            answers.send(finding)
    except UserError as error:
        answers.send(Finding(check.name, "fail", str(error)))
    except Exception as error:
        value = one_line(f"{type(error).__name__}: {error}")
        answers.send(Finding(check.name, "fail", value, "the check itself failed here"))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the parent sends it after the answer; this process ends by itself
    answers.send(None)


def _end(pid: int) -> None:
    """End a process and its children. A process that hangs in the kernel is abandoned."""
    deadline = time.monotonic() + _GRACE_SECONDS
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    while not (gone := os.waitpid(pid, os.WNOHANG)[0] == pid) and time.monotonic() < deadline:
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not gone:
        time.sleep(0.05)
        os.waitpid(pid, os.WNOHANG)
