"""Paths, status and lock of the run folder."""

import contextlib
import fcntl
import json
import os
import re
import socket
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, cast

from data_prep.common.errors import NO_ROOM, MissingFile, UserError
from data_prep.common.files import (
    file_lock,
    make_folder,
    no_link,
    open_plain,
    refuse_link,
    text_or_none,
    write_file,
    write_json,
)
from data_prep.common.reading import json_or_none, read_json
from data_prep.common.urls import hide_secrets
from data_prep.storage import require_run
from pretrain.run.environment_file import read_environment

State = Literal["starting", "running", "completed", "stopped", "failed"]
ALL_DONE = "all steps are done"
"""The reason of a completed run without a problem."""
REFUSAL_VARIABLE = "MASKWRIGHT_REFUSAL"
COMMAND_VARIABLE = "MASKWRIGHT_COMMAND"
"""The command line of the user, which started the processes of a run and is recorded for the report."""
_LOCK_VARIABLE = "MASKWRIGHT_LOCK"
"""Names the file descriptor of the lock that `maskwright train` holds and its processes inherit."""
_READER_SECONDS = 1.0  # for readers to release the lock, which they hold for a moment
_POLL_SECONDS = 0.02
_FOR_NOW = "asked by Slurm, to go on later"
EXIT_CODES: dict[State, int] = {"completed": 0, "stopped": 75, "failed": 1, "starting": 1, "running": 1}


@dataclass(frozen=True)
class Status:
    """The content of status.json. It is reliable; the exit code of a launcher may not be."""

    state: State
    step: int
    total_steps: int
    reason: str
    next_action: str
    time: float
    retry: bool = True
    """Of a run that failed or stopped: may a supervisor start it again? Not after a user's request,
    nor after an error that would only come again."""

    @property
    def is_over(self) -> bool:
        """Whether the run is over."""
        return self.state not in ("starting", "running")


def step_name(step: int) -> str:
    """The name of the folder of a checkpoint."""
    return f"step-{step:08d}"


class RunFolder:
    """Paths of a run folder, its lock and its status."""

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.yaml"
        self.environment = path / "environment.json"
        self.journal = path / "journal.jsonl"
        self.predictions = path / "predictions.jsonl"
        self.status = path / "status.json"
        self.stop = path / "STOP"
        self.checkpoints = path / "checkpoints"
        self.exports = path / "exports"
        self.models_log = path / "models.log"
        self.tokenizer = path / "tokenizer"
        self.mlflow_run = path / "mlflow_run.json"
        self.report = path / "report.html"
        self.heartbeats = path / "heartbeats"
        self.stacks = path / "stacks"
        self.system = path / "system"
        self.profile = path / "profile"
        self.slurm = path / "slurm"
        self.job_script = self.slurm / "job.sh"
        self.job_config = self.slurm / "config.yaml"
        self.supervisor = self.slurm / "supervisor.json"

    def heartbeat_of(self, rank: int) -> Path:
        """The heartbeat file of a rank."""
        return self.heartbeats / f"rank-{rank:05d}.json"

    def stacks_of(self, rank: int) -> Path:
        """The file for a rank's stacks when the run hangs."""
        return self.stacks / f"rank-{rank:05d}.txt"

    def export_of(self, step: int, averaged: bool = False, view: str | None = None) -> Path:
        """The folder of the exported model of a step, unless the user names one. Raises UserError below a link.

        `averaged`: with the averaged weights of optim.ema. `view`: of a mixture, the name of the view.
        """
        name = f"{step_name(step)}{'-ema' if averaged else ''}{f'-{view}' if view else ''}"
        return refuse_link(self.exports) / name

    @property
    def title(self) -> str:
        """The name of the folder; for one seed of a job array, with the name of the folder of all seeds."""
        path = self.path.absolute()
        return f"{path.parent.name}/{path.name}" if re.fullmatch(r"seed-\d+", path.name) else path.name

    def create(self) -> None:
        """Make the folders.

        Raises UserError if the place cannot be written, or something in it is a pipe, a socket or a symbolic link:
        training would change what it leads to, and the folder may come from somebody else.
        """
        try:
            make_folder(self.checkpoints)
        except OSError as error:
            reason = "it is a file" if self.path.is_file() else error.strerror
            raise UserError(f"{self.path}: the run folder cannot be made ({reason}). Choose another run.dir.") from None
        for path in self.path.iterdir():
            if path.is_symlink():
                raise UserError(f"{path} is a symbolic link, and training would change what it leads to. Remove it.")
            if path.is_fifo() or path.is_socket():
                raise UserError(f"{path} is a pipe or a socket, and training needs a regular file there. Remove it.")

    def lock(self, stopping_seconds: float = 60.0) -> IO[str]:
        """Hold the folder while the returned file is open, here or in a process that inherits it.

        If the run that holds it is stopping, wait for its end, up to `stopping_seconds`.

        That the processes of the run inherit the lock is why this is flock itself: the lock of the filelock package
        belongs to one process, and ends with it.

        Raises:
            UserError: naming the holder, if another process holds it.
        """
        if inherited := self._inherited_lock():
            return inherited
        try:
            file = open(self.path / ".lock", "a+", opener=no_link)  # noqa: SIM115 (held open as long as the run)
        except OSError as error:
            raise UserError(f"{self.path}: the run folder cannot be written ({error.strerror})") from None
        try:
            self._take_lock(file, stopping_seconds)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise UserError(
                f"{self.path}: {holder} is training in this run folder; wait, stop it, or choose another run.dir"
            ) from None
        except OSError as error:  # some network file systems have no locks
            print(f"warning: {self.path} cannot be locked ({error.strerror}); nothing keeps a second run out of it")
        file.truncate(0)
        job = f", Slurm job {os.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in os.environ else ""
        file.write(f"process {os.getpid()} on {socket.gethostname()}{job}")
        file.flush()
        return file

    def _take_lock(self, file: IO[str], stopping_seconds: float) -> None:
        try:
            return _lock_alone(file, _READER_SECONDS)
        except BlockingIOError:
            if not (stopping_seconds and self._is_stopping()):
                raise
        print(f"{self.path}: waiting for the end of a run that is stopping here ...", file=sys.stderr, flush=True)
        _lock_alone(file, stopping_seconds)

    def _is_stopping(self) -> bool:
        """Whether the run that holds the folder will end soon: its launcher was killed, or its result is recorded."""
        status, holder = self.status_or_none(), re.match(r"process (\d+) on ([^\s,]+)", self.holder())
        is_lost = holder and holder[2] == socket.gethostname() and not Path(f"/proc/{holder[1]}").exists()
        return bool(is_lost or (status and status.is_over))

    @staticmethod
    def inheritable(lock: IO[str]) -> dict[str, str]:
        """Environment variables for a process that inherits the file descriptor of a lock and thus holds the folder."""
        return {_LOCK_VARIABLE: str(lock.fileno())}

    @staticmethod
    def inherits_lock() -> bool:
        """Whether the command that started this process holds the lock of its run folder."""
        return _LOCK_VARIABLE in os.environ

    def _inherited_lock(self) -> IO[str] | None:
        """The lock of this folder that the command which started this process holds."""
        descriptor = int(os.environ.get(_LOCK_VARIABLE, -1))
        try:
            if os.path.samestat(os.fstat(descriptor), os.stat(self.path / ".lock")):
                return os.fdopen(descriptor, "a+")
        except OSError:  # this process has not inherited it
            pass
        return None

    def is_held(self) -> bool:
        """Whether a run, on this host or on another that shares the file system's locks, holds the folder."""
        try:
            file = open_plain(self.path / ".lock")
        except OSError:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:  # held, or a file system without locks, where status.json must be believed
                return True
        return False

    def holder(self) -> str:
        """The last holder of the folder: `process P on HOST`, and `, Slurm job J`; empty if no process held it."""
        return text_or_none(self.path / ".lock") or ""

    def break_lock(self) -> None:
        """Break the lock of a holder that the caller knows to be lost, for example on an unreachable machine."""
        (self.path / ".lock").unlink(missing_ok=True)

    def ask_to_stop(self, reason: str = "") -> None:
        """Have the run stop after a checkpoint, and say why.

        Raises OSError if the folder cannot be written.
        """
        write_file(self.stop, reason.encode())

    def ask_to_pause(self) -> None:
        """Have the run stop after a checkpoint because Slurm wants it to, and continue later; `ask_to_stop`, which
        `touch RUN/STOP` is too, has the last word.

        Raises OSError if the folder cannot be written.
        """
        self.ask_to_stop(_FOR_NOW)

    def is_asked_to_end(self) -> bool:
        """Whether a stop, not only a pause, was requested."""
        return self.stop.exists() and text_or_none(self.stop) != _FOR_NOW

    def status_time(self) -> int | None:
        """The time of the last write of status.json, in nanoseconds; None if it does not exist."""
        try:
            return self.status.stat().st_mtime_ns
        except OSError:
            return None

    def write_status(
        self, state: State, step: int, total_steps: int, reason: str, next_action: str, retry: bool = True
    ) -> None:
        """Replace status.json, or where the disk has no room for a second file, what is in it.

        Raises OSError if neither can be done.
        """
        status = asdict(Status(state, step, total_steps, reason, next_action, time.time(), retry))
        try:
            write_json(self.status, status)
            return
        except OSError as error:
            if error.errno not in NO_ROOM or not self.status.exists():
                raise
            try:
                with open(self.status, "r+b", opener=no_link) as file:
                    file.write(json.dumps(status).encode())
                    file.truncate()
            except OSError:
                raise error from None  # it names the file

    def enter(self, phase: str) -> None:
        """Record the phase of a starting run that holds the folder. Later phases report a full disk."""
        status = self.status_or_none()
        if status and status.state == "starting":
            with contextlib.suppress(OSError):
                self.write_status("starting", status.step, status.total_steps, phase, "none")

    def progress(self, step: int, total_steps: int, reason: str, next_action: str) -> None:
        """Record the progress of a run, unless a rank has recorded a failure.

        Raises OSError if it cannot be written.
        """
        with self._turn():
            status = self.status_or_none()  # an unreadable file is replaced
            if not status or status.state != "failed":
                self.write_status("running", step, total_steps, reason, next_action)

    def fail(self, reason: str, next_action: str, retry: bool = True) -> bool:
        """Record a failure, unless another rank has, or the run is over. Returns whether it was recorded.

        Raises UserError if there is no readable status.json.
        """
        with self._turn():
            status = self.recorded_status()
            if status.is_over:
                return False
            self.write_status("failed", status.step, status.total_steps, reason, next_action, retry)
            return True

    def read_status(self) -> Status:
        """Read status.json. A run whose processes ended without recording why counts as failed.

        A completed run whose last step is exported has no next action.

        Raises UserError if status.json is missing or cannot be read.
        """
        status = self.recorded_status()
        if not status.is_over and not self.is_held():
            return _ended_silently(status)
        exported = any(self.exports.glob(f"{step_name(status.step)}*"))
        return replace(status, next_action="none") if status.state == "completed" and exported else status

    def final_status(self) -> Status:
        """The status when the caller, who holds the folder, knows that the run's processes have ended.

        Raises UserError if status.json is missing or cannot be read.
        """
        status = self.recorded_status()
        return status if status.is_over else _ended_silently(status)

    def read_environment(self) -> dict[str, Any] | None:
        """The recorded environment of the run's starts; None if the file is missing or damaged."""
        return read_environment(self.environment)

    def _turn(self) -> contextlib.AbstractContextManager[bool]:
        """Let one rank write at a time: ranks often fail at the same time."""
        return file_lock(self.path / ".failure", needed=False)

    def recorded_status(self) -> Status:
        """Read status.json without checking whether the processes still exist.

        Raises UserError if status.json is missing or cannot be read.
        """
        try:
            return cast(Status, read_json(self.status, Status, hint="delete it: the next start writes a new one"))
        except MissingFile:
            require_run(self.path)
            raise UserError(f"{self.path} has no status.json: its run has not started. Start it.") from None

    def status_or_none(self) -> Status | None:
        """As recorded_status, but None if status.json is missing or cannot be read."""
        status: Status | None = json_or_none(self.status, Status)
        return status


def report_failure(folder: RunFolder | None, reason: str, retry: bool = True) -> bool:
    """Print a failure and record it in status.json, once over all ranks; True on the rank that did.

    Args:
        folder: None for a run that has not recorded its start, and may not write status.json. All its ranks fail the
            same way: rank 0 prints the reason and writes it to the supervisor's file.
    """
    prints, reason = os.environ.get("RANK", "0") == "0", hide_secrets(reason)
    with contextlib.suppress(UserError, OSError):  # a full disk, perhaps the cause of the failure
        if folder:
            prints = folder.fail(reason, "fix the cause, then run the same command again", retry)
        elif prints and (path := os.environ.get(REFUSAL_VARIABLE)):
            write_json(Path(path), {"reason": reason, "retry": retry})
    if prints:
        print(f"error: {reason}", file=sys.stderr, flush=True)
    return prints


def _lock_alone(file: IO[str], seconds: float) -> None:
    """Take the exclusive lock of a file. Wait for readers, which hold the lock for a moment (RunFolder.is_held).

    Raises BlockingIOError if another process still holds it; OSError on a file system without locks.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


def _ended_silently(status: Status) -> Status:
    """The status of a run whose processes ended without recording why."""
    reason = f"its processes ended without a word after step {status.step} (killed, or out of memory?)"
    return replace(status, state="failed", reason=reason, next_action="run the same command again to resume")
