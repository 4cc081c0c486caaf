"""`maskwright doctor`."""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from data_prep.common.errors import UserError
from data_prep.common.processes import module_command
from launchers.arguments import JsonFlag, Overrides, YesOption, load_trusted_config
from launchers.display import text_console

if TYPE_CHECKING:
    from launchers.local import Finding, FindingStatus

_COLORS: "dict[FindingStatus, str]" = {"ok": "green", "warn": "yellow", "fail": "red", "skipped": "bright_black"}


def doctor(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="config file: also check its data, settings and tracking server"),
    ] = None,
    overrides: Overrides = None,
    full: Annotated[
        bool, typer.Option("--full", help="also import torch and DeepSpeed, and run a kernel (about a minute)")
    ] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="check all nodes of this Slurm job, and measure the network between them")
    ] = False,
    nodes: Annotated[int | None, typer.Option(min=1, help="request a new allocation of N nodes for --cluster")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="GPUs to request on each node")] = None,
    yes: YesOption = False,
    as_json: JsonFlag = False,
) -> None:
    """Check this machine. With CONFIG, also check the data, the settings and the tracking server of a run.

    Exit code 1 if a check fails. docs/doctor.md explains each line.

    Examples:

        maskwright doctor
        maskwright doctor configs/bert-mini.yaml --full
        maskwright doctor configs/bert-mini.yaml run.dir=/shared/runs/one --json
        maskwright doctor --nodes 4 --gpus-per-node 8
    """
    from launchers.doctor import examine_machine

    if full and (cluster or nodes is not None):
        raise UserError("--full checks one machine only. Remove --cluster and --nodes, or --full.")
    if gpus_per_node is not None and nodes is None:
        raise UserError("--gpus-per-node is for a new allocation. Add --nodes N.")
    settings = load_trusted_config(config, overrides, yes) if config else None
    words = [str(config), *(overrides or [])] if config else []
    if nodes is not None:
        sys.exit(_allocate(nodes, gpus_per_node, [*words, *["--yes"] * yes, *["--json"] * as_json]))
    if cluster:
        from launchers.doctor import examine_cluster

        works = print_report(*examine_cluster(words), as_json=as_json)
    else:
        works = print_report(examine_machine(settings, full), None, as_json)
    sys.exit(0 if works else 1)


def _allocate(nodes: int, gpus_per_node: int | None, arguments: list[str]) -> int:
    """Run `maskwright doctor --cluster` in a new allocation, and return its exit code."""
    from launchers.slurm import allocate

    options = ["--job-name=maskwright-doctor"]
    if gpus_per_node:
        options += [f"--gres=gpu:{gpus_per_node}", f"--ntasks-per-node={gpus_per_node}"]
    command = module_command("launchers.cli", "doctor", "--cluster", *arguments)
    return allocate(nodes, options, command)


def print_report(findings: "Iterable[Finding]", measured: dict[str, Any] | None, as_json: bool) -> bool:
    """Print each finding when it is known, then the number of findings by status. Returns whether no check failed.

    Args:
        measured: values that were measured on a cluster, for JSON.
        as_json: print one JSON object at the end instead.
    """
    console, done = text_console(), []
    for finding in findings:
        done.append(finding)
        if not as_json:
            advice = f" -> {finding.advice}" if finding.advice else ""
            text = f"{finding.status:<8}{finding.group:<11}{finding.name}: {finding.value}{advice}"
            console.print(Text.assemble((text[:8], _COLORS[finding.status]), text[8:]), soft_wrap=True)
    found = Counter(finding.status for finding in done)
    counts = {status: found[status] for status in _COLORS}
    if as_json:
        report = {"findings": [asdict(finding) for finding in done], "counts": counts}
        typer.echo(json.dumps(report if measured is None else report | {"measured": measured}, indent=1))
    else:
        typer.echo(", ".join(f"{count} {status}" for status, count in counts.items()))
    return not counts["fail"]
