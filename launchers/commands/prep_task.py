"""`maskwright prep task`: run tasks of a plan."""

import typer

from data_prep.jobs import Workers
from launchers.commands.arguments import Planned, Tasks, WorkerCount
from launchers.commands.prep_output import show_totals
from launchers.display import CommandProgress
from pretrain.distributed import usable_cores


def prep_task(out: Planned, tasks: Tasks, workers: WorkerCount = None) -> None:
    """Run these tasks of a plan. Finished tasks are only verified.

    Example: `maskwright prep task data/web 0 1 2`
    """
    from data_prep.jobs import encoder_notes
    from data_prep.jobs.prepare import do_tasks

    with Workers(min(workers or usable_cores().number, len(tasks))) as processes, CommandProgress() as line:
        records = do_tasks(out, tasks, processes, show_totals(line))
    for note in encoder_notes(records):
        typer.echo(note, err=True)
