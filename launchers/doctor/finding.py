"""Checks of the doctor, each with its time limit, and their findings made fit to print."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from data_prep.tokenizer import printable
from data_prep.urls import redact
from pretrain.planning import Finding, Status

STATUSES: tuple[Status, ...] = ("ok", "warn", "fail", "skipped")


@dataclass(frozen=True)
class Check:
    """A check of one thing. It may give several findings, and is ended after `seconds`."""

    group: str
    name: str
    look: Callable[[], Iterable[Finding]] = field(repr=False)
    seconds: float = 10.0


def presentable(finding: Finding) -> Finding:
    """The finding without secrets in addresses and without control characters."""
    return replace(
        finding,
        value=printable(redact(finding.value)),
        advice=printable(redact(finding.advice)),
        name=printable(finding.name),
    )


def worst(findings: Iterable[Finding]) -> Status:
    """The worst status that occurs: fail, then warn, then ok; skipped if all checks were."""
    present = {finding.status for finding in findings}
    order: tuple[Status, ...] = ("fail", "warn", "ok")
    return next((status for status in order if status in present), "skipped")
