"""Description of a Slurm job, RUN/slurm/job.json: written at submission, read by the job."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from data_prep.errors import UserError
from data_prep.files import atomic_writer
from data_prep.reading import parse_json, read_bytes, unusable
from pretrain.config import ContainerConfig
from pretrain.run import RunFolder

_MAX_NUMBER = 1 << 31
_AT_LEAST_ONE = ("nodes", "processes_per_node", "cpus_per_process")
_SUBMIT = "submit the run again"


class JobFile(BaseModel):
    """One training run on one allocation. Paths are absolute and on shared storage."""

    model_config = ConfigDict(extra="ignore", frozen=True)  # a queued job may come from an earlier version

    config: Path
    run_dir: Path
    python: Path
    nodes: int
    processes_per_node: int
    cpus_per_process: int
    cpu: bool
    """Train on CPU with gloo."""
    container: ContainerConfig | None = None
    """Container of the ranks, with its own Python. The supervisor runs outside."""
    interface: str | None = None
    """Network interface for gloo and NCCL; None selects the interface of the route to the other nodes."""
    spare_nodes: int = 0
    """Extra nodes that replace failed ones."""
    max_restarts: int = 3
    """Limit of restarts after failures on the same allocation, without a new checkpoint in between."""
    requeue: bool = True
    """Requeue the job at the time limit, at a preemption, and after a lost node."""
    max_requeues: int = 5
    """Limit of requeues without a new checkpoint in between."""
    signal_seconds: int = 120
    """Seconds from Slurm's warning to the time limit."""
    pause_seconds: float = 10.0
    """Pause before the first restart, in seconds; doubled for each further restart."""
    health_seconds: float = 60.0
    """Time limit of a node's health check. A node that does not answer in time is unhealthy."""
    leave_seconds: float = 120.0
    """Seconds from the end of the run, by its status, until remaining ranks are killed."""

    @property
    def folder(self) -> Path:
        """Folder of the script, this description, the hostfiles and, by default, the logs."""
        return RunFolder(self.run_dir).slurm

    @property
    def path(self) -> Path:
        """Path of this description."""
        return RunFolder(self.run_dir).job

    def write(self) -> None:
        """Write job.json.

        Raises:
            UserError: if the run folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_writer(self.path) as file:
                file.write(self.model_dump_json(indent=1).encode())
        except OSError as error:
            raise UserError(f"{self.path} cannot be written ({error.strerror}): choose another run.dir") from None


def read_job(path: Path) -> JobFile:
    """Read a job.json.

    Raises:
        UserError: if the file is missing or invalid.
    """
    data = read_bytes(path, hint=_SUBMIT)
    try:
        parse_json(data, dict[str, Any])
        job = JobFile.model_validate_json(data, strict=True)
        _check(job)
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise unusable(path, f"not a job's description; see its key {key}", _SUBMIT) from None
    except ValueError as error:
        raise unusable(path, f"not a job's description: {error}", _SUBMIT) from None
    return job


def _check(job: JobFile) -> None:
    """Raise ValueError for numbers out of range, and for paths with NUL."""
    values = job.model_dump()
    for name, value in values.items():
        least = 1 if name in _AT_LEAST_ONE else 0
        if type(value) in (int, float) and not least <= value <= _MAX_NUMBER:
            raise ValueError(f"{name} is {value}")
    if "\0" in "".join(map(str, (job.config, job.run_dir, job.python))):
        raise ValueError("a path has the character NUL")
