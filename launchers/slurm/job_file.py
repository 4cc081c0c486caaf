"""What a Slurm job trains and how, as the login node decided it: RUN/slurm/job.json, read by the job itself."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from data_prep.errors import UserError
from data_prep.files import atomic_writer
from data_prep.reading import parse_json, read_bytes, unusable
from pretrain.config import ContainerConfig

_MAX_NUMBER = 1 << 31
_AT_LEAST_ONE = ("nodes", "processes_per_node", "cpus_per_process")
_SUBMIT = "submit the run again"


class JobFile(BaseModel):
    """One training run on one allocation. Paths are absolute, and on storage that all nodes share."""

    model_config = ConfigDict(extra="ignore", frozen=True)  # a job that waits may be of an earlier version

    config: Path
    run_dir: Path
    python: Path
    nodes: int
    processes_per_node: int
    cpus_per_process: int
    cpu: bool
    """Train on CPU, over gloo."""
    container: ContainerConfig | None = None
    """Where each node's part runs, with a Python of its own; the supervisor is outside."""
    interface: str | None = None
    """For gloo and NCCL; None: the one that leads to the other nodes."""
    spare_nodes: int = 0
    """Nodes that the job asks for besides, to take the place of those that fail."""
    max_restarts: int = 3
    """After failures, on the same allocation, without a new checkpoint."""
    requeue: bool = True
    """Queue the job again at a time limit, a preemption or a lost node."""
    max_requeues: int = 5
    """Starts of the job again, without a new checkpoint."""
    signal_seconds: int = 120
    """How long before the time limit Slurm warns the job."""
    pause_seconds: float = 10.0
    """Before the first restart; doubled for each further one."""
    health_seconds: float = 60.0
    """A node that has not said by then how it is, is ill."""
    leave_seconds: float = 120.0
    """How long ranks may take to leave after the run's status says that it has ended, before they are killed."""

    @property
    def folder(self) -> Path:
        """Where the script, this description, the hostfiles and, by default, the logs are kept."""
        return self.run_dir / "slurm"

    @property
    def path(self) -> Path:
        """Where this description is kept."""
        return self.folder / "job.json"

    def write(self) -> None:
        """Write job.json.

        Raises:
            UserError: when the run folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_writer(self.path) as file:
                file.write(self.model_dump_json(indent=1).encode())
        except OSError as error:
            raise UserError(f"{self.path} cannot be written ({error.strerror}): choose another run.dir") from None


def read_job(path: Path) -> JobFile:
    """The job of a job.json.

    Raises:
        UserError: if it is not there, or is none.
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
    """Raise ValueError for numbers that no submission writes, and for NUL, which no path has."""
    values = job.model_dump()
    for name, value in values.items():
        least = 1 if name in _AT_LEAST_ONE else 0
        if type(value) in (int, float) and not least <= value <= _MAX_NUMBER:
            raise ValueError(f"{name} is {value}")
    if "\0" in "".join(map(str, (job.config, job.run_dir, job.python))):
        raise ValueError("a path has the character NUL")
