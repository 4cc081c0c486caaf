"""The jobs of this user that Slurm knows, and the runs that they train."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from data_prep.reading import open_plain

_FIELDS = {"id": "%i", "array": "%F", "task": "%K", "state": "%T", "reason": "%r", "used": "%M", "limit": "%l"}
_FIELDS |= {"start": "%S", "nodes": "%D", "name": "%j", "comment": "%k", "script": "%o"}
_SEPARATOR = "\x1f"  # names and paths may hold anything that is printable
_COMMENT = "maskwright:"
_WRITTEN = "written by `maskwright launch"
_SECONDS = 15  # that a busy controller may take to answer


@dataclass(frozen=True)
class QueuedJob:
    """A job that waits or runs.

    Attributes:
        id: as scancel takes it; of an array's element, ARRAY_TASK.
        state: Slurm's, such as PENDING. reason: why it waits.
        used, limit: time, as Slurm prints it. start: when it began, or may begin, if that is known.
        run: the folder of the run that it trains; None for a job that trains none.
    """

    id: str
    state: str
    reason: str
    used: str
    limit: str
    start: str
    nodes: str
    name: str
    run: Path | None

    @property
    def waits(self) -> bool:
        """Whether it has not begun, or waits to begin again."""
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")


def own_jobs() -> tuple[list[QueuedJob], str | None]:
    """This user's jobs of Maskwright, the oldest first; or none, and why Slurm cannot be asked."""
    if shutil.which("squeue") is None:
        return [], "there is no squeue here"
    command = ["squeue", "--me", "--array", "--noheader", f"--format={_SEPARATOR.join(_FIELDS.values())}"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return [], f"squeue does not answer within {_SECONDS} s"
    except OSError as error:
        return [], f"squeue cannot be run ({error.strerror})"
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()
        return [], lines[-1] if lines else f"squeue exited with {result.returncode}"
    found = [job for line in result.stdout.splitlines() if (job := parse(line))]
    return sorted(found, key=lambda job: [int(part) for part in re.findall(r"\d+", job.id)]), None


def cancel_waiting(ids: list[str]) -> str | None:
    """Take jobs out of the queue, unless they have begun; what went wrong, or None."""
    try:
        result = subprocess.run(
            ["scancel", "--state=PENDING", *ids], capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"scancel does not answer within {_SECONDS} s"
    except OSError as error:
        return f"scancel cannot be run ({error.strerror})"
    return result.stderr.strip() or None


def parse(line: str) -> QueuedJob | None:
    """The job of a line of squeue; None for a job that is not Maskwright's, and for anything else."""
    parts = line.split(_SEPARATOR)
    if len(parts) != len(_FIELDS):
        return None
    job = dict(zip(_FIELDS, (part.strip() for part in parts), strict=True))
    run = run_of(job["comment"], job["script"], job["task"])
    if run is None and not _written_by_us(job["script"]):
        return None
    keys = ("id", "state", "reason", "used", "limit", "start", "nodes", "name")
    return QueuedJob(**{key: job[key] for key in keys}, run=run)


def run_of(comment: str, script: str, task: str) -> Path | None:
    """The run folder that a job names in its comment, or whose script it is (RUN/slurm/job.sh)."""
    if comment.startswith(_COMMENT):
        return Path(comment.removeprefix(_COMMENT).replace("%a", task))
    path = Path(script)
    return path.parent.parent if path.parts[-2:] == ("slurm", "job.sh") else None


def jobs_of(run: Path, jobs: list[QueuedJob]) -> list[QueuedJob]:
    """Those that train this run."""
    return [job for job in jobs if job.run is not None and _same(job.run, run)]


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _written_by_us(script: str) -> bool:
    try:
        with open_plain(script) as file:
            return _WRITTEN in file.read(500).decode(errors="replace")
    except (OSError, ValueError):
        return False
