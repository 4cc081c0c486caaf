"""Output of findings as lines or as JSON."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import typer

from launchers.doctor.finding import STATUSES, Finding

_COLORS = {"ok": "green", "warn": "yellow", "fail": "red", "skipped": "bright_black"}


def print_finding(finding: Finding) -> None:
    """Print a finding on one line. On a terminal its status is coloured."""
    text = line(finding)
    typer.echo(typer.style(text[:8], fg=_COLORS[finding.status]) + text[8:])


def line(finding: Finding) -> str:
    """Format a finding on one line."""
    advice = f" -> {finding.advice}" if finding.advice else ""
    return f"{finding.status:<8}{finding.group:<11}{finding.name}: {finding.value}{advice}"


def summary(findings: Sequence[Finding], seconds: float) -> str:
    """Number of findings by status."""
    counts = Counter(finding.status for finding in findings)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES) + f" in {seconds:.1f} s"


def as_json(findings: Sequence[Finding], seconds: float, measured: dict[str, Any] | None = None) -> str:
    """One JSON object: the findings, their number by status, and the values `measured` on a cluster."""
    counts = Counter(finding.status for finding in findings)
    keys = ("group", "name", "status", "value", "advice")
    report: dict[str, Any] = {
        "findings": [{key: getattr(finding, key) for key in keys} for finding in findings],
        "counts": {status: counts[status] for status in STATUSES},
        "seconds": round(seconds, 3),
    }
    return json.dumps(report if measured is None else {**report, "measured": measured}, indent=1)
