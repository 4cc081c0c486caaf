"""`maskwright stop`: ask runs to save and stop."""

from launchers.commands.arguments import RunsArgument
from launchers.watch import look_at_all
from launchers.watch.stop_run import stop_run


def stop(run: RunsArgument) -> None:
    """Ask runs to write a checkpoint and stop (exit code 75); a job that waits in Slurm's queue is taken out of it.

    Examples:

        maskwright stop runs/demo

        maskwright stop runs/a runs/b
    """
    for seen in look_at_all(run):
        print(stop_run(seen))
