"""`maskwright prep task`: run tasks of a plan."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from data_prep.common.errors import UserError
from data_prep.jobs import Workers
from launchers.arguments import NamedFilters, PlanArgument, WorkerCount, refuse_unread
from launchers.display import CommandProgress, show_totals
from pretrain.distributed import Cores


def prep_task(
    context: typer.Context,
    out: PlanArgument,
    tasks: Annotated[list[int] | None, typer.Argument(metavar="TASK", help="task numbers, from 0")] = None,
    stage: Annotated[
        Literal["task", "scan", "resolve"],
        typer.Option(help="make shards; with --deduplicate first hash the documents (scan) and find duplicates"),
    ] = "task",
    filters: NamedFilters = None,
    workers: WorkerCount = None,
    memory_gb: Annotated[
        float, typer.Option(min=0.1, help="memory limit of resolve in gigabytes; more memory means fewer passes")
    ] = 0.5,
) -> None:
    """Run these tasks of a plan that `prep run --plan-only` made. Finished tasks are only verified.

    A plan with --deduplicate has two stages before: scan all tasks, then resolve, which takes no task numbers.

    Examples:

        maskwright prep task data/books 0
        maskwright prep task data/web 0 1 2 3 --stage scan
        maskwright prep task data/web --stage resolve --memory-gb 4
    """
    if stage != "resolve":
        refuse_unread(context, "--stage resolve", "memory_gb")
        _run(stage, out, tasks or [], workers, filters or [])
        return
    if tasks or workers or filters:
        raise UserError("--stage resolve is one job for all tasks. Remove the task numbers, --workers and --filter.")
    from data_prep.jobs import resolve_tasks

    typer.echo(f"{out}: {resolve_tasks(out, int(memory_gb * 1e9)):,} duplicates to drop")


def _run(stage: Literal["task", "scan"], out: Path, tasks: list[int], workers: int | None, filters: list[str]) -> None:
    if not tasks:
        raise UserError(f"No task numbers. Example: maskwright prep task {out} 0 1 2")
    with Workers(min(workers or Cores.usable().number, len(tasks)), filters) as processes, CommandProgress() as line:
        from data_prep.jobs import run_tasks  # slow import; the worker processes start in the meantime

        notes = run_tasks(stage, out, tasks, processes, show_totals(line))
    for note in notes:
        typer.echo(note, err=True)
