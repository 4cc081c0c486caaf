"""`maskwright logs`."""

import sys
from typing import Annotated

import typer

from data_prep.common.errors import UserError
from data_prep.storage import require_run
from launchers.arguments import RunArgument
from launchers.watch import find_log, log_lines
from pretrain.run import RunFolder


def logs(
    run: RunArgument,
    follow_it: Annotated[bool, typer.Option("--follow", "-f", help="print new lines until the run finishes")] = False,
    lines: Annotated[int, typer.Option("--tail", "-n", min=0, help="number of last lines to show")] = 50,
    whole: Annotated[bool, typer.Option("--all", help="all lines")] = False,
    job: Annotated[
        str | None, typer.Option(metavar="ID", help="log of this Slurm job; by default the newest job")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="show the stacks of this rank when the watchdog ended the run")
    ] = None,
) -> None:
    """Show the log of a run's newest Slurm job, or else the steps from its journal.

    Examples:

        maskwright logs runs/demo
        maskwright logs runs/bert-base --follow
        maskwright logs runs/bert-base --job 4711 --all
    """
    folder = RunFolder(run)
    require_run(run)
    count = None if whole else lines
    if rank is not None:
        path = folder.stacks_of(rank)
        if not path.exists():
            raise UserError(
                f"{path}: rank {rank} wrote no stacks. Ranks write them when the watchdog ends a run that hangs"
            )
    else:
        path = find_log(run, job) or folder.journal
    if not path.exists() and not (follow_it and job is None and rank is None):
        raise UserError(f"{run} has no log yet, and no journal; `maskwright status {run}` shows its state")
    print(f"==> {path} <==", file=sys.stderr, flush=True)
    for line in log_lines(path, run, count, follow_it):
        print(line, flush=follow_it)
