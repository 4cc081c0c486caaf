"""`maskwright doctor`."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer


def doctor(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="also check what this run needs")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="run.dir=... ...")] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="also import torch, run a kernel, import DeepSpeed, compare tokenizers (a minute)"),
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="also read every byte of the data sets of CONFIG")] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="look at all nodes of this Slurm job, and measure them together")
    ] = False,
    nodes: Annotated[int | None, typer.Option(min=1, help="--cluster in a new allocation of so many nodes")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="GPUs to ask for on each of them")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Say what is wrong with this machine, a run's data and its tracking server, before the run meets it.

    Exit code 1 if anything fails; docs/doctor.md explains each line.

    Examples:

        maskwright doctor

        maskwright doctor configs/bert-mini.yaml --full

        maskwright doctor configs/bert-mini.yaml run.dir=/shared/runs/one --json

        maskwright doctor --nodes 4 --gpus-per-node 8
    """
    from launchers.doctor.finding import worst
    from launchers.doctor.report import as_json as to_json
    from launchers.doctor.report import print_findings
    from pretrain.config import load_config

    begin = time.monotonic()
    _refuse_senseless(config, full, deep, cluster or nodes is not None, gpus_per_node, nodes)
    settings = load_config(config, overrides) if config else None
    words = [str(config), *(overrides or [])] if config else []
    measured = None
    if nodes is not None:
        from launchers.doctor.cluster import allocate

        sys.exit(allocate(nodes, gpus_per_node, [*words, *(["--json"] if as_json else [])]))
    if cluster:
        from launchers.doctor.cluster import examine_cluster

        findings, measured = examine_cluster(words)
    else:
        from launchers.doctor.run_checks import run_checks
        from launchers.doctor.subjects import all_checks

        checks = all_checks(settings, full, deep)
        findings = run_checks(checks, _progress(len(checks)))
    seconds = time.monotonic() - begin
    if as_json:
        print(to_json(findings, seconds, measured))
    else:
        print_findings(findings, seconds)
    sys.exit(1 if worst(findings) == "fail" else 0)


def _progress(total: int) -> Callable[[int, Sequence[str]], None] | None:
    """A line on a terminal that says what is being looked at, and is gone at the end."""
    if not (sys.stderr.isatty() and sys.stdout.isatty()):
        return None

    def show(done: int, names: Sequence[str]) -> None:
        text = f"{done} of {total} checks done; {', '.join(names)}"[:78] if done < total else ""
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)

    return show


def _refuse_senseless(
    config: Path | None, full: bool, deep: bool, cluster: bool, gpus_per_node: int | None, nodes: int | None
) -> None:
    from data_prep.errors import UserError

    if deep and config is None:
        raise UserError("--deep reads the data sets of a config: give CONFIG")
    if cluster and (full or deep):
        raise UserError("--full and --deep are for one machine: run them without --cluster and --nodes")
    if gpus_per_node is not None and nodes is None:
        raise UserError("--gpus-per-node is asked of a new allocation: give --nodes too")
