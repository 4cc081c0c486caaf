"""`maskwright prep task`: run tasks of a plan."""

from typing import Annotated, Literal

import typer

from data_prep.common.errors import UserError
from data_prep.jobs import Workers
from launchers.arguments import MEMORY_GB, MemoryOption, NamedFilters, PlanArgument, Trusted, WorkerCount, refuse_unread
from launchers.display import CommandProgress, show_totals
from pretrain.distributed import Cores


def prep_task(
    context: typer.Context,
    out: PlanArgument,
    tasks: Annotated[
        list[int] | None,
        typer.Argument(metavar="TASK", help="numbers from 0, of tasks; of ranges with --stage resolve"),
    ] = None,
    stage: Annotated[
        Literal["task", "scan", "resolve"],
        typer.Option(help="make shards; with --deduplicate first hash the documents (scan) and find duplicates"),
    ] = "task",
    filters: NamedFilters = None,
    yes: Trusted = False,
    workers: WorkerCount = None,
    memory_gb: MemoryOption = MEMORY_GB,
) -> None:
    """Run these tasks of a plan that `prep run --plan-only` made. Finished tasks are only verified.

    A plan with --deduplicate has two stages before: scan all tasks, then resolve all ranges of hashes. Without numbers,
    --stage resolve does all ranges that are missing.

    Examples:

        maskwright prep task data/books 0
        maskwright prep task data/web 0 1 2 3 --stage scan
        maskwright prep task data/web 0 --stage resolve --memory-gb 4
        maskwright prep task data/web --stage resolve
    """
    if stage != "resolve":
        refuse_unread(context, "--stage resolve", "memory_gb")
        if not tasks:
            raise UserError(f"No task numbers. Example: maskwright prep task {out} 0 1 2")
    elif filters or yes:
        raise UserError(f"--stage resolve reads no documents. Remove {'--filter' if filters else '--yes'}.")
    cores = workers or Cores.usable().number
    with Workers(min(cores, len(tasks or range(cores))), filters or [], yes) as pool, CommandProgress() as line:
        from data_prep.jobs import run_tasks  # slow import; the worker processes start in the meantime

        notes = run_tasks(stage, out, tasks or [], pool, show_totals(line), int(memory_gb * 1e9))
    for note in notes:
        typer.echo(note, err=True)
