"""ssh connections: run a module of this project on a host, and exchange lines of JSON with it."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError, one_line
from data_prep.common.processes import module_command
from data_prep.common.reading import parse_json, typed

SSH = ("ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
"""Never prompt; give up on a host that does not answer."""
ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
"""Detect a lost host within a minute."""
MARK = "maskwright: "
"""Start of an answer's line. A host's shell profile may print other lines."""
_SSH_FAILED = 255
_ANSWER_SECONDS = 120.0


@dataclass(frozen=True)
class HostsJob:
    """One run on `hosts`, in rank order. Paths are absolute and the same on all hosts."""

    config: Path
    overrides: list[str]
    run_dir: Path
    hosts: list[str]
    processes: int
    """training processes per host"""
    cpu: bool
    working_dir: Path = field(default_factory=Path.cwd)
    python: Path = field(default_factory=lambda: Path(os.path.abspath(sys.executable)))
    python_path: str = field(default_factory=lambda: os.environ.get("PYTHONPATH", ""))

    def ssh_command(self, host: str, module: str = "launchers.hosts.host_entry") -> list[str]:
        """The ssh command that runs `python -m module` on a host, in the working folder. Other data use the pipe."""
        python_path = f"PYTHONPATH={shlex.quote(self.python_path)} " if self.python_path else ""
        command = f"{python_path}exec {shlex.join(module_command(module, python=str(self.python)))}"
        return [*SSH, *ALIVE, host, f"cd {shlex.quote(str(self.working_dir))} && {command}"]


@dataclass(frozen=True)
class Reply:
    """A host's answer to a question, or the error."""

    value: Any = None
    error: str | None = None


def read_answer(host: str, line: str, kind: Any) -> Any:
    """Parse a host's line into a value of this kind (see data_prep.common.reading).

    Raises:
        UserError: if the line is damaged, or the host reports an error.
    """
    try:
        reply: Reply = parse_json(line.removeprefix(MARK), Reply)
        if reply.error is None:
            return typed(kind, reply.value)
    except ValueError as error:
        raise UserError(
            f"{host} gave an answer that cannot be used: {one_line(str(error), 100)}. Install the same Maskwright on "
            "every host."
        ) from None
    raise UserError(one_line(f"{host}: {reply.error}"))


class Conversation:
    """Connection to the probe on a host, for questions and answers.

    Raises:
        UserError: from each question without an answer, with host and reason.
    """

    def __init__(self, job: HostsJob, host: str):
        self._job, self._host = job, host
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the connection)
        self._process = subprocess.Popen(
            job.ssh_command(host, "launchers.hosts.host_probe"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            errors="replace",
        )

    def ask(self, kind: Any, question: str, **details: Any) -> Any:
        """Ask the host, and return its answer as a value of this kind."""
        assert self._process.stdin
        assert self._process.stdout
        timer = threading.Timer(_ANSWER_SECONDS, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps({"question": question} | details) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith(MARK):
                    return read_answer(self._host, line, kind)
            raise BrokenPipeError
        except BrokenPipeError:
            raise UserError(self._silence()) from None
        finally:
            timer.cancel()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _silence(self) -> str:
        """Reason why the host did not answer."""
        code = self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        last = lines[-1].rstrip(".") if lines else f"exit code {code}"
        if code < 0:
            return f"{self._host} did not answer within {_ANSWER_SECONDS:.0f} s"
        if code == _SSH_FAILED:
            return f"{self._host} cannot be reached ({last}): `ssh -o BatchMode=yes {self._host} true` must succeed"
        return (
            f"{self._host} cannot run {self._job.python} in {self._job.working_dir} ({last}): every host needs the "
            "same Python environment and folder at the same path"
        )
