"""State of runs for the watching commands, from folder, status, journal and Slurm's queue."""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.errors import UserError
from launchers.slurm import QueuedJob, Saving, jobs_of, own_jobs, read_saving
from pretrain.reporting import duration
from pretrain.run import RunFolder

if TYPE_CHECKING:
    from pretrain.reporting import RunSummary

PIPE_WIDTH = 1000  # columns of a table in a pipe, so that no line wraps
WAITS = "queued"  # state of a run whose job has not started, so that it has no status yet


@dataclass(frozen=True)
class Seen:
    """A run with its jobs in Slurm's queue, and the duration of its last checkpoint after a Slurm warning."""

    summary: "RunSummary"
    jobs: list[QueuedJob]
    saving: Saving | None = None

    @property
    def state(self) -> str:
        """State of the summary, or "queued" before the job has started."""
        status = self.summary.status
        waits = self.jobs and self.jobs[0].waits and (status is None or status.is_over)
        return WAITS if waits else self.summary.state

    @property
    def reason(self) -> str:
        if self.state == WAITS:
            return f"job {self.jobs[0].id} waits in the queue ({self.jobs[0].reason})"
        return self.summary.reason

    @property
    def next_action(self) -> str:
        if self.state == WAITS:
            return f"none; `maskwright stop {self.summary.run}` takes it out of the queue"
        return self.summary.next_action

    def facts(self) -> dict[str, Any]:
        """All fields as JSON values."""
        said = {"state": self.state, "reason": self.reason, "next_action": self.next_action}
        jobs = [asdict(job) | {"run": str(self.summary.run)} for job in self.jobs]
        saving = asdict(self.saving) if self.saving else None
        return self.summary.as_values() | said | {"saving": saving, "jobs": jobs}


def look(run: Path, jobs: list[QueuedJob]) -> Seen:
    """Read the current state of a run. An unreadable status is a problem in the summary, not an error."""
    from pretrain.reporting import summarize

    return Seen(summarize(run), jobs_of(run, jobs), read_saving(RunFolder(run).supervisor))


def look_at_all(given: list[Path]) -> list[Seen]:
    """Read the current state of runs, each once. A folder that is not a run is replaced by the runs below it.

    Raises:
        UserError: if there is a single run and nothing of it can be read.
    """
    from data_prep.folder_kinds import is_run
    from pretrain.reporting import runs_below

    paths = dict.fromkeys(run for path in given for run in ([path] if is_run(path) else runs_below(path) or [path]))
    # Only submitted runs have a job; Slurm is not called for other runs.
    jobs, _ = own_jobs() if any(RunFolder(run).slurm.is_dir() for run in paths) else ([], None)
    found = [look(path, jobs) for path in paths]
    if len(found) == 1 and found[0].summary.problem and not found[0].jobs:
        raise UserError(found[0].summary.problem)
    return found


def as_json(values: Any) -> str:
    """Format as JSON. Numbers that are not finite become null."""
    return json.dumps(_finite(values), indent=1)


def ago(seconds: float) -> str:
    """Format an age, for example "3 min"."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def step_cell(seen: Seen) -> str:
    status = seen.summary.status
    return f"{status.step:,} of {status.total_steps:,}" if status else ""


def place(run: Path) -> str:
    """Format a run folder, relative to the working directory if it is below it."""
    return str(run.relative_to(Path.cwd())) if run.is_relative_to(Path.cwd()) else str(run)


def age_cell(seen: Seen) -> str:
    return ago(time.time() - seen.summary.status.time) if seen.summary.status else ""


def left_cell(seen: Seen) -> str:
    left = seen.summary.seconds_left
    return "" if left is None else duration(left)


def number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def job_cell(jobs: Iterable[QueuedJob]) -> str:
    return ", ".join(f"{job.id} {job.state.lower()}" for job in jobs)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and value - value != 0 else value
