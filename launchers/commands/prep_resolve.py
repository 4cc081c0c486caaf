"""`maskwright prep resolve`: find the duplicates among the scanned documents."""

from typing import Annotated

import typer

from launchers.commands.arguments import Planned


def prep_resolve(
    out: Planned,
    memory_gb: Annotated[float, typer.Option(min=0.1, help="Gigabytes to work in: the more, the fewer passes.")] = 0.5,
) -> None:
    """With --deduplicate: when all tasks are scanned, find the documents that each must drop.

    Example: `maskwright prep resolve data/web`
    """
    from data_prep.jobs.prepare import resolve_tasks

    dropped = resolve_tasks(out, int(memory_gb * 1e9))
    typer.echo(f"{out}: {dropped:,} duplicates to drop")
