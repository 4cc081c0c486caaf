"""`maskwright prep scan`: hash the documents of tasks of a plan."""

from launchers.commands.arguments import Planned, Tasks, WorkerCount
from launchers.commands.prep_output import run_stage


def prep_scan(out: Planned, tasks: Tasks, workers: WorkerCount = None) -> None:
    """For a plan with --deduplicate: hash the documents of these tasks.

    Example:

        maskwright prep scan data/web 0
    """
    run_stage("scan", out, tasks, workers)
