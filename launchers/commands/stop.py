"""`maskwright stop`: stop runs after a checkpoint."""

from launchers.arguments import RunsArgument
from launchers.watch import require_runs, stop_run, view_runs


def stop(run: RunsArgument) -> None:
    """Ask runs to write a checkpoint and stop (exit code 75). Jobs that still wait in Slurm's queue are cancelled.

    Examples:

        maskwright stop runs/demo
        maskwright stop runs/a runs/b
    """
    views = view_runs(run)
    for view in views:
        if view.is_run:
            print(stop_run(view))
    require_runs(views)
