"""The run folder: where everything is, what state the run is in, and who holds it."""

import fcntl
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from data_prep.errors import UserError
from data_prep.files import write_json

State = Literal["running", "completed", "stopped", "failed"]
EXIT_CODES: dict[State, int] = {"completed": 0, "stopped": 75, "failed": 1, "running": 1}


@dataclass(frozen=True)
class Status:
    """What status.json says: the truth about a run, where a launcher's exit code may not be."""

    state: State
    step: int
    total_steps: int
    reason: str
    next_action: str
    time: float


class RunFolder:
    """Paths of one run. `claimed` says that this process's run holds it, and so may speak for it in status.json."""

    def __init__(self, path: Path):
        self.path = path
        self.claimed = False
        self.config = path / "config.yaml"
        self.environment = path / "environment.json"
        self.journal = path / "journal.jsonl"
        self.status = path / "status.json"
        self.stop = path / "STOP"
        self.checkpoints = path / "checkpoints"
        self.exports = path / "exports"
        self.curve = path / "curve.png"

    def create(self) -> None:
        """Make the folders.

        Raises:
            UserError: if the place cannot be written.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.path}: the run folder cannot be made ({error.strerror})") from None

    def lock(self) -> IO[str]:
        """Hold the folder while the returned file is open.

        Raises:
            UserError: naming the holder, if another process holds it.
        """
        file = open(self.path / ".lock", "a+")  # noqa: SIM115 (held open as long as the run)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise UserError(
                f"{self.path}: {holder} is training in this run folder; wait, stop it, or choose another run.dir"
            ) from None
        file.truncate(0)
        job = f", Slurm job {os.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in os.environ else ""
        file.write(f"process {os.getpid()} on {socket.gethostname()}{job}")
        file.flush()
        return file

    def write_status(self, state: State, step: int, total_steps: int, reason: str, next_action: str) -> None:
        """Replace status.json."""
        write_json(self.status, asdict(Status(state, step, total_steps, reason, next_action, time.time())))

    def read_status(self) -> Status:
        """What status.json says.

        Raises:
            UserError: if there is none, or it cannot be read.
        """
        try:
            values: dict[str, Any] = json.loads(self.status.read_text())
            return Status(**values)
        except FileNotFoundError:
            raise UserError(f"{self.path}: not a run folder (it has no status.json)") from None
        except (ValueError, TypeError, OSError) as error:
            raise UserError(f"{self.status}: cannot be read ({error})") from None
