"""`maskwright prep scan`: hash the documents of tasks of a plan."""

from data_prep.jobs import Workers
from launchers.commands.arguments import Planned, Tasks, WorkerCount
from launchers.commands.prep_output import show_totals
from launchers.display import CommandProgress
from pretrain.distributed import usable_cores


def prep_scan(out: Planned, tasks: Tasks, workers: WorkerCount = None) -> None:
    """For a plan with --deduplicate: hash the documents of these tasks.

    Example: `maskwright prep scan data/web 0 1 2`
    """
    from data_prep.jobs.prepare import scan_tasks

    with Workers(min(workers or usable_cores().number, len(tasks))) as processes, CommandProgress() as line:
        scan_tasks(out, tasks, processes, show_totals(line))
