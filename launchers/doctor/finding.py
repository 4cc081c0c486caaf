"""What a check is, and what it finds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from data_prep.remote import redact
from data_prep.spelling import printable

Status = Literal["ok", "warn", "fail", "skipped"]
STATUSES: tuple[Status, ...] = ("ok", "warn", "fail", "skipped")


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, what it is like, and what to do about it."""

    name: str
    status: Status
    value: str
    advice: str = ""
    group: str = ""


@dataclass(frozen=True)
class Check:
    """A look at one thing, which may end in several findings and is given up after `seconds`."""

    group: str
    name: str
    look: Callable[[], Iterable[Finding]] = field(repr=False)
    seconds: float = 10.0


def presentable(finding: Finding) -> Finding:
    """The finding without secrets in addresses, and without characters that would steer a terminal."""
    return replace(
        finding,
        value=printable(redact(finding.value)),
        advice=printable(redact(finding.advice)),
        name=printable(finding.name),
    )


def worst(findings: Iterable[Finding]) -> Status:
    """The gravest status that occurs: fail, else warn, else ok; skipped where all are."""
    found = {finding.status for finding in findings}
    order: tuple[Status, ...] = ("fail", "warn", "ok")
    return next((status for status in order if status in found), "skipped")
