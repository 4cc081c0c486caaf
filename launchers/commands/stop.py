"""`maskwright stop`: stop runs after a checkpoint."""

from launchers.arguments import RunsArgument
from launchers.watch import look_at_all, stop_run


def stop(run: RunsArgument) -> None:
    """Ask runs to write a checkpoint and stop (exit code 75). Jobs that still wait in Slurm's queue are cancelled.

    Examples:

        maskwright stop runs/demo
        maskwright stop runs/a runs/b
    """
    for seen in look_at_all(run):
        print(stop_run(seen))
