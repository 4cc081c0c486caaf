"""`maskwright prep task`: run tasks of a plan."""

from launchers.commands.arguments import Planned, Tasks, WorkerCount
from launchers.commands.prep_output import run_stage


def prep_task(out: Planned, tasks: Tasks, workers: WorkerCount = None) -> None:
    """Run these tasks of a plan. Finished tasks are only verified.

    Example:

        maskwright prep task data/web 0
    """
    run_stage("task", out, tasks, workers)
