"""A module of this project run on another host over ssh, and spoken to in lines of JSON."""

import json
import shlex
import subprocess
import tempfile
import threading
from typing import Any

from data_prep.errors import UserError, one_line
from data_prep.reading import parse_json
from launchers.hosts.job import HostsJob

SSH = ("ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
"""Never asks, and gives up on a host that does not answer."""
ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
"""Notices within a minute that a host is gone."""
MARK = "maskwright: "
"""Begins an answer's line, among what a host's shell profile may print."""
_SSH_FAILED = 255


def ssh_command(job: HostsJob, host: str, module: str) -> list[str]:
    """Run `python -m module` on a host, in the job's folder and with its Python; all else goes through the pipe."""
    python_path = f"PYTHONPATH={shlex.quote(job.python_path)} " if job.python_path else ""
    remote = f"cd {shlex.quote(str(job.working_dir))} && {python_path}exec {shlex.quote(str(job.python))} -m {module}"
    return [*SSH, *ALIVE, host, remote]


def read_answer(host: str, line: str) -> dict[str, Any]:
    """The answer in a line of a host.

    Raises:
        UserError: if the line is damaged, or the host answers with an error.
    """
    try:
        answer: dict[str, Any] = parse_json(line.removeprefix(MARK), dict[str, Any])
    except ValueError as error:
        raise not_understood(host, error) from None
    if "error" in answer:
        raise UserError(one_line(f"{host}: {answer['error']}"))
    return answer


def not_understood(host: str, error: ValueError) -> UserError:
    """The error for an answer of a host that cannot be used."""
    return UserError(
        f"{host} gave an answer that cannot be used: {one_line(str(error), 100)}. Give every host the same Maskwright."
    )


class Conversation:
    """Questions to a module on a host and its answers.

    Raises:
        UserError: from every question, naming the host and why there is no answer.
    """

    def __init__(self, job: HostsJob, host: str, module: str):
        self._job, self._host = job, host
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the conversation)
        self._process = subprocess.Popen(
            ssh_command(job, host, module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            errors="replace",
        )

    def ask(self, question: dict[str, Any], seconds: float = 120) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith(MARK):
                    answer = read_answer(self._host, line)
                    break
            else:
                raise BrokenPipeError
        except BrokenPipeError:
            raise UserError(self._silence(seconds)) from None
        finally:
            timer.cancel()
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _silence(self, seconds: float) -> str:
        """Why the host said nothing, as one sentence."""
        code = self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        last = lines[-1].rstrip(".") if lines else f"exit code {code}"
        if code < 0:
            return f"{self._host} did not answer within {seconds:.0f} s"
        if code == _SSH_FAILED:
            return f"{self._host} cannot be reached ({last}): `ssh -o BatchMode=yes {self._host} true` must succeed"
        return (
            f"{self._host} cannot run {self._job.python} in {self._job.working_dir} ({last}): every host needs the "
            "same Python environment and folder at the same path"
        )
