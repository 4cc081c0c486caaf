"""Output of findings as lines or as JSON."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import typer

from pretrain.planning import Finding, Status

_COLORS: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "red", "skipped": "bright_black"}


def print_report(findings: Iterable[Finding], measured: dict[str, Any] | None, as_json: bool) -> bool:
    """Print each finding when it is known, then the number of findings by status. Returns whether no check failed.

    Args:
        measured: values that were measured on a cluster, for JSON.
        as_json: print one JSON object at the end instead.
    """
    done = []
    for finding in findings:
        done.append(finding)
        if not as_json:
            advice = f" -> {finding.advice}" if finding.advice else ""
            text = f"{finding.status:<8}{finding.group:<11}{finding.name}: {finding.value}{advice}"
            typer.echo(typer.style(text[:8], fg=_COLORS[finding.status]) + text[8:])
    found = Counter(finding.status for finding in done)
    counts = {status: found[status] for status in _COLORS}
    if as_json:
        report = {"findings": [asdict(finding) for finding in done], "counts": counts}
        typer.echo(json.dumps(report if measured is None else report | {"measured": measured}, indent=1))
    else:
        typer.echo(", ".join(f"{count} {status}" for status, count in counts.items()))
    return not counts["fail"]
