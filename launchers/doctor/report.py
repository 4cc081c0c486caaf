"""What the checks found, for people and for machines."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launchers.doctor.finding import STATUSES, Finding

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}


def print_findings(findings: Sequence[Finding], seconds: float) -> None:
    """A table on a terminal, else a line each with the advice after it; and the sum."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(_table(findings))
        console.print(Text(summary(findings, seconds), style="bold"))
        return
    for finding in findings:
        print(line(finding))
    print(summary(findings, seconds))


def line(finding: Finding) -> str:
    """A finding on one line."""
    advice = f" -> {finding.advice}" if finding.advice else ""
    return f"{finding.status:<8}{finding.group:<11}{finding.name}: {finding.value}{advice}"


def summary(findings: Sequence[Finding], seconds: float) -> str:
    """How many findings are of which status."""
    counts = Counter(finding.status for finding in findings)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES) + f" in {seconds:.1f} s"


def as_json(findings: Sequence[Finding], seconds: float, measured: dict[str, Any] | None = None) -> str:
    """One JSON object: the findings, their number by status, and what was `measured` on a cluster."""
    counts = Counter(finding.status for finding in findings)
    keys = ("group", "name", "status", "value", "advice")
    report: dict[str, Any] = {
        "findings": [{key: getattr(finding, key) for key in keys} for finding in findings],
        "counts": {status: counts[status] for status in STATUSES},
        "seconds": round(seconds, 3),
    }
    return json.dumps(report if measured is None else {**report, "measured": measured}, indent=1)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "what", "found"):
        table.add_column(name, overflow="fold")
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            table.add_section()
            table.add_row("", Text(group, style="bold"), "")
        found = Text(finding.value)
        if finding.advice:
            found.append(f"\n{finding.advice}", style="italic")
        table.add_row(Text(finding.status, style=_STYLES[finding.status]), Text(finding.name), found)
    return table
