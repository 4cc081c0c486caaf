"""What a Slurm job trains and how, as the login node decided it: RUN/slurm/job.json, read by the job itself."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from data_prep.errors import UserError
from data_prep.files import atomic_writer
from pretrain.config import ContainerConfig


class Job(BaseModel):
    """One training run on one allocation. Paths are absolute, and on storage that all nodes share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    bind: Literal["none", "cores"] = "none"
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


def read_job(path: Path) -> Job:
    """The job of a job.json.

    Raises:
        UserError: if it is not there, or is none.
    """
    try:
        return Job.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: not a job's description ({str(error).splitlines()[0]}); submit the run anew"
        ) from None
