"""`maskwright prep resolve`: find duplicates among the scanned documents."""

from typing import Annotated

import typer

from launchers.commands.arguments import Planned


def prep_resolve(
    out: Planned,
    memory_gb: Annotated[
        float, typer.Option(min=0.1, help="memory limit in gigabytes; more memory means fewer passes")
    ] = 0.5,
) -> None:
    """For a plan with --deduplicate: find the duplicates that each task must drop. Needs the scans of all tasks.

    Example:

        maskwright prep resolve data/web
    """
    from data_prep.jobs import resolve_tasks

    dropped = resolve_tasks(out, int(memory_gb * 1e9))
    typer.echo(f"{out}: {dropped:,} duplicates to drop")
