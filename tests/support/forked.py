"""Run Python modules as processes that a process with all imports forks within milliseconds.

Imports take ten seconds of every training run; see tests.support.fork_server. A forked process cannot change settings
that are read at import: `fits` says whether an environment needs none of them.
"""

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from select import select
from typing import IO, cast

import psutil

from launchers.local import gpu_count

ROOT = Path(__file__).resolve().parents[2]
# What libraries read when they are imported.
_AT_IMPORT = {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": None, "PYTHONWARNINGS": None}
Completed = subprocess.CompletedProcess[str]


def fits(environment: dict[str, str]) -> bool:
    """Whether a process with this environment can be forked; on GPUs none can, as CUDA does not survive it."""
    on_cpu = not gpu_count() or environment.get("DS_ACCELERATOR") == "cpu"
    has_hub = "HF_ENDPOINT" not in environment or "HF_HOME" in environment  # a forked process is told of both
    return on_cpu and has_hub and all(environment.get(name) == value for name, value in _AT_IMPORT.items())


class Forked:
    """A process of the fork server, with the interface of subprocess.Popen.

    Args:
        command: module and arguments of `python -m`.
        output: a file for stdout and stderr, or one for each.
    """

    def __init__(self, command: list[str], environment: dict[str, str], cwd: Path, output: Path | tuple[Path, Path]):
        assert fits(environment)
        files = output if isinstance(output, tuple) else (output, output)
        self.returncode: int | None = None
        self._answers, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        request = {"command": command, "environment": environment, "cwd": str(cwd)}
        with open(os.devnull) as nothing, open(files[0], "ab") as out, open(files[1], "ab") as err, theirs:
            descriptors = [nothing.fileno(), out.fileno(), err.fileno(), theirs.fileno()]
            socket.send_fds(_server()[1], [json.dumps(request).encode()], descriptors)
        self.pid = self._receive()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._end(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raises subprocess.TimeoutExpired."""
        code = self._end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it, unless the process has exited."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None and select([self._answers], [], [], timeout)[0]:
            self.returncode = self._receive()
            self._answers.close()
        return self.returncode

    def _receive(self) -> int:
        answer = self._answers.recv(100)
        assert answer, "the fork server has died"
        return int(answer)


class ForkedWithPipe(Forked):
    """As `subprocess.Popen` in `start_command`: one output is a pipe, the other goes to it or to a file.

    `others` have no effect, as each forked process has no input, its own session, and ends with the server.
    """

    def __init__(self, command: list[str], env: dict[str, str], stdout: int | IO[str], **others: object):
        reading, writing = os.pipe()
        to_pipe = Path(f"/dev/fd/{writing}")
        out = to_pipe if stdout == subprocess.PIPE else Path(f"/dev/fd/{cast(IO[str], stdout).fileno()}")
        super().__init__(command[command.index("-m") + 1 :], env, Path.cwd(), (out, to_pipe))
        os.close(writing)
        pipe = open(reading, "rb")  # noqa: SIM115
        self.stdout, self.stderr = (pipe, None) if stdout == subprocess.PIPE else (None, pipe)

    def __enter__(self) -> "ForkedWithPipe":
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        (self.stdout or cast(IO[bytes], self.stderr)).close()


def run_forked(command: list[str], environment: dict[str, str], cwd: Path, timeout: float) -> Completed:
    """`subprocess.run` with its output captured."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "stdout", Path(folder) / "stderr"
        process = Forked(command, environment, cwd, files)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return Completed(command, code, *(file.read_text() for file in files))


def processes() -> list[psutil.Process]:
    """All running processes that the fork server or its children started."""
    if not _server.cache_info().currsize:
        return []
    return [process for process in psutil.Process(_server()[0].pid).children(recursive=True) if _lives(process)]


def assert_none_left(seconds: float = 10) -> None:
    """No process may outlive what started it by more than that."""
    deadline = time.monotonic() + seconds
    while left := processes():
        if time.monotonic() > deadline:
            told = [f"{process.pid} {' '.join(process.cmdline())[:300]}" for process in left]
            for process in left:
                process.kill()
            raise AssertionError(f"processes are left: {told}")
        time.sleep(0.02)


def _lives(process: psutil.Process) -> bool:
    """A killed process whose threads are not all gone still holds its files and locks."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


@functools.cache
def _server() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The fork server, which dies with this process, and the socket that it listens on."""
    environment = {name: value for name, value in os.environ.items() if name not in _AT_IMPORT}
    environment |= {name: value for name, value in _AT_IMPORT.items() if value is not None}
    # The second, of pyarrow's allocator, ends the one thread that the imports would start.
    environment |= {"DS_ACCELERATOR": "cpu", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    mine, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    command = [sys.executable, "-u", "-m", "tests.support.fork_server", str(theirs.fileno()), "-" * 4000]
    with theirs:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL
        )
    atexit.register(lambda: (process.kill(), process.wait()))
    assert mine.recv(100) == b"ready", "the fork server did not start"
    return process, mine
