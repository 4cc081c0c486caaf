"""Stop a run: a training one, one whose job is starting, or one in Slurm's queue."""

from data_prep.errors import UserError
from launchers.slurm import cancel_waiting, jobs_of, own_jobs
from launchers.watch.run_table import Seen
from pretrain.run import RunFolder


def stop_run(seen: Seen) -> str:
    """Ask a run to stop, or cancel its pending jobs. Returns a message for the user.

    Raises:
        UserError: if both fail.
    """
    run = seen.summary.run
    waiting = [job.id for job in seen.jobs if job.waits]
    if seen.state in ("starting", "running"):
        _ask(seen)
        rest = f"; its job {', '.join(waiting)} still waits: scancel {' '.join(waiting)}" if waiting else ""
        return f"asked {run} to stop; `maskwright status {run}` shows when it has stopped{rest}"
    if waiting:
        return _take_out(seen, waiting)
    if seen.jobs:
        _ask(seen)
        return f"{run} has not begun in job {seen.jobs[0].id}; asked it to stop, which the job does before it trains"
    return f"{run} is not running; it is {seen.state}"


def _take_out(seen: Seen, waiting: list[str]) -> str:
    """Cancel the pending jobs. Jobs that have started in the meantime are asked to stop."""
    problem = cancel_waiting(waiting)
    left, unknown = own_jobs()
    left = jobs_of(seen.summary.run, left)
    if still := [job.id for job in left if job.waits and job.id in waiting]:
        raise UserError(
            f"{seen.summary.run}: job {', '.join(still)} is still in the queue ({problem or 'scancel said nothing'})"
        )
    if unknown or left:
        _ask(seen)
        return f"{seen.summary.run} begins at this moment; asked it to stop, which its job does before it trains"
    status = seen.summary.status
    if status and status.state != "completed":
        action = "submit the run again to resume"
        RunFolder(seen.summary.run).write_status(
            status.state, status.step, status.total_steps, "its job was taken out of the queue", action, retry=False
        )
    return f"{seen.summary.run} was not running; took its job {', '.join(waiting)} out of the queue"


def _ask(seen: Seen) -> None:
    try:
        RunFolder(seen.summary.run).ask_to_stop("asked by `maskwright stop`")
    except OSError as error:
        raise UserError(f"{seen.summary.run}: it cannot be asked to stop ({error.strerror})") from None
