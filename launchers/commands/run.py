"""`maskwright train`, `status`, `stop` and `export`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from data_prep.errors import UserError

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder (run.dir of the config)")]


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="a YAML file; see configs/")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="train.steps=200 ...")] = None,
    procs: Annotated[int | None, typer.Option(min=1, help="processes; by default one a GPU, or one")] = None,
) -> None:
    """Train on this machine; run it again to go on after a stop or a crash.

    Exit code: 0 completed, 75 stopped on request (Ctrl-C, SIGTERM, `maskwright stop`), 1 failed.

    Examples:

        maskwright train configs/bert-mini.yaml

        maskwright train configs/bert-mini.yaml train.steps=200 optim.lr=1e-3 --procs 2
    """
    from launchers.local import gpu_count, train_locally
    from pretrain.config import load_config
    from pretrain.data.sources import check_run

    parsed = load_config(config, overrides)
    processes = procs or max(1, gpu_count())
    if 0 < gpu_count() < processes:
        raise UserError(f"--procs {processes} needs as many GPUs, and {gpu_count()} are visible; lower --procs")
    check_run(parsed, processes)  # what is wrong is best said before any process starts
    sys.exit(train_locally(config, parsed, overrides or [], processes))


def status(
    run: RunArgument,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
    exit_code: Annotated[bool, typer.Option(help="exit with the run's code: 0 completed, 75 stopped, 1 else")] = False,
) -> None:
    """Show what a run is doing, and what to do next.

    Example:

        maskwright status runs/demo
    """
    from pretrain.run_folder import EXIT_CODES, RunFolder

    found = RunFolder(run).read_status()
    if as_json:
        print(json.dumps(asdict(found), indent=1))
    else:
        table = Table(show_header=False, box=None)
        table.add_row("state", found.state)
        table.add_row("step", f"{found.step} of {found.total_steps}")
        table.add_row("reason", escape(found.reason))
        table.add_row("next", escape(found.next_action))
        Console().print(table)
    if exit_code:
        sys.exit(EXIT_CODES[found.state])


def stop(run: RunArgument) -> None:
    """Ask a run to write a checkpoint and stop (exit code 75).

    Example:

        maskwright stop runs/demo
    """
    from pretrain.run_folder import RunFolder

    folder = RunFolder(run)
    state = folder.read_status().state
    if state != "running":
        print(f"{run} is not running; it is {state}")
        return
    folder.stop.touch()
    print(f"asked {run} to stop; `maskwright status {run}` tells when it has")


def export(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="folder to write; RUN/exports/step-N by default")] = None,
    step: Annotated[int | None, typer.Option(help="the newest checkpoint by default")] = None,
    ema: Annotated[bool, typer.Option("--ema", help="the averaged weights of optim.ema")] = False,
) -> None:
    """Write a checkpoint as a Hugging Face model folder.

    Examples:

        maskwright export runs/demo

        maskwright export runs/demo --step 400 --out models/demo

        maskwright export runs/demo --ema
    """
    from pretrain.export import export_run

    print(export_run(run, step, out, averaged=ema))
