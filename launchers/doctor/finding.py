"""Types of the doctor: a check with its time limit, and printable findings."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from data_prep.tokenizer import printable
from data_prep.urls import redact
from pretrain.planning import Finding, Status

STATUSES: tuple[Status, ...] = ("ok", "warn", "fail", "skipped")


@dataclass(frozen=True)
class Check:
    """One check. It may yield several findings, and is killed after `seconds`."""

    group: str
    name: str
    look: Callable[[], Iterable[Finding]] = field(repr=False)
    seconds: float = 10.0


def presentable(finding: Finding) -> Finding:
    """Remove secrets in addresses and control characters from a finding."""
    return replace(
        finding,
        value=printable(redact(finding.value)),
        advice=printable(redact(finding.advice)),
        name=printable(finding.name),
    )


def worst(findings: Iterable[Finding]) -> Status:
    """The worst status: fail, then warn, then ok; skipped if all checks were skipped."""
    present = {finding.status for finding in findings}
    order: tuple[Status, ...] = ("fail", "warn", "ok")
    return next((status for status in order if status in present), "skipped")
