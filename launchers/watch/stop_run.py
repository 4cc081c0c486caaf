"""Stop a run: a training one, one whose job is starting, or one in Slurm's queue."""

from data_prep.common.errors import UserError
from launchers.slurm import QueuedJob, own_jobs
from launchers.watch.run_table import RunView
from pretrain.run import RunFolder


def stop_run(view: RunView) -> str:
    """Ask a run to stop, or cancel its pending jobs. Returns a message for the user. Raises UserError if both fail."""
    run = view.summary.run
    waiting = [job for job in view.jobs if job.waits]
    if view.state in ("starting", "running"):
        _ask(view)
        ids = [job.id for job in waiting]
        rest = f"; its job {', '.join(ids)} still waits: scancel {' '.join(ids)}" if waiting else ""
        return f"asked {run} to stop; `maskwright status {run}` shows when it has stopped{rest}"
    if waiting:
        return _take_out(view, waiting)
    if view.jobs:
        _ask(view)
        return f"{run} has not begun in job {view.jobs[0].id}; it will stop before its first step"
    return f"{run} is not running; it is {view.state}"


def _take_out(view: RunView, waiting: list[QueuedJob]) -> str:
    """Cancel the pending jobs. Jobs that have started in the meantime are asked to stop."""
    problems = [problem for job in waiting if (problem := job.cancel_while_pending())]
    ids = [job.id for job in waiting]
    jobs, unknown = own_jobs()
    left = [job for job in jobs if job.trains(view.summary.run)]
    if still := [job.id for job in left if job.waits and job.id in ids]:
        reason = (problems or ["scancel said nothing"])[0]
        raise UserError(f"{view.summary.run}: job {', '.join(still)} is still in the queue ({reason})")
    if unknown or left:
        _ask(view)
        return f"{view.summary.run} is starting; it will stop before its first step"
    status = view.summary.status
    if status and status.state != "completed":
        action = "submit the run again to resume"
        RunFolder(view.summary.run).write_status(
            status.state, status.step, status.total_steps, "its job was taken out of the queue", action, retry=False
        )
    return f"{view.summary.run} was not running; took its job {', '.join(ids)} out of the queue"


def _ask(view: RunView) -> None:
    try:
        RunFolder(view.summary.run).ask_to_stop("asked by `maskwright stop`")
    except OSError as error:
        raise UserError(f"{view.summary.run}: it cannot be asked to stop ({error.strerror})") from None
