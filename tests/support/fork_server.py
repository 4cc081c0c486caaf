"""A process that has imported slow packages, and forks processes that run Python modules.

`python -u -m tests.support.fork_server SOCKET PADDING` answers on the socket with that descriptor; the client is
tests.support.forked. A request starts `python -m MODULE ARGUMENTS...` in a new session. Child processes of the command
line (start_ranks) and their children (the ranks) are forked in the same way, each by its usual parent. So parents,
sessions, signals, environments and exit codes equal the command's. PADDING reserves space for the command line
that `ps` and psutil show.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from select import select
from types import SimpleNamespace
from typing import IO, NoReturn

from data_prep.common.processes import die_with_parent
from launchers.local import run_commands
from tests.support import fault_injection, hub_server

# Imports of a training run; many happen in DeepSpeed's initialize, in MLflow's first store and for the loss curve.
MODULES = (
    "alembic.command",
    "alembic.config",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "launchers.app",
    "launchers.commands.train",
    "launchers.local.local_launch",
    "launchers.local.start_ranks",
    "launchers.watch.run_table",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "mlflow.store.tracking.sqlalchemy_workspace_store",
    "pretrain.export.hugging_face_export",
    "pretrain.loop.step_loop",
    "pretrain.tracking.mlflow_runs",
    "pretrain.trial.kernel_choice",
    "sqlalchemy.dialects.sqlite",
    "transformers.models.bert.modeling_bert",
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)


class ForkedModule:
    """`subprocess.Popen` for `python [-u] -m MODULE ARGUMENTS...`: a fork of this process, with all its files."""

    def __init__(
        self,
        command: Sequence[str],
        env: dict[str, str] | None = None,
        start_new_session: bool = False,
        preexec_fn: Callable[[], None] | None = None,
        stdin: int | None = None,
        pass_fds: Sequence[int] = (),
        close_fds: bool = True,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
    ):
        words = [word for word in command if word != "-P"]
        if words[:2] != [sys.executable, "-m"]:
            raise ValueError(f"not a Python module: {command}")
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            if start_new_session:
                os.setsid()
            if stdin is not None:
                os.dup2(os.open(os.devnull, os.O_RDONLY) if stdin == subprocess.DEVNULL else stdin, 0)
            for standard, output in enumerate((stdout, stderr), 1):
                if output:
                    os.dup2(output.fileno(), standard)
            if preexec_fn:
                preexec_fn()
            be_module(words[2:], dict(os.environ) if env is None else env)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the exit code; raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + (timeout or 0)
        while timeout is not None and self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.02)
        return self._reap(0)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def run_module(command: Sequence[str], env: dict[str, str]) -> ForkedModule:
    """`subprocess.run` for a Python module."""
    sys.stdout.flush()  # or the other process would write it, too
    child = ForkedModule(command, env)
    child.wait()
    return child


def be_module(command: Sequence[str], environment: dict[str, str]) -> NoReturn:
    """Be `python -m MODULE ARGUMENTS...` from here to the end of this process."""
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    if {"HF_ENDPOINT", "HF_HOME"} <= environment.keys():
        hub_server.set_constants(setattr, environment["HF_ENDPOINT"], Path(environment["HF_HOME"]))
    fault_injection.install()
    _show(command)
    sys.argv = list(command)
    code = 1
    try:
        if command[0] == "launchers.local.start_ranks":
            sys.exit(importlib.import_module("launchers.local.start_ranks").main(command[1:]))
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def _show(command: Sequence[str]) -> None:
    """Make /proc/PID/cmdline this command's (proc(5): arg_start and arg_end are fields 48 and 49 of stat)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    shown = b"\0".join(word.encode() for word in (sys.executable, "-m", *command))[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


class Server:
    """Forks on requests from a socket, and answers with pids and exit codes."""

    def __init__(self, requests: socket.socket):
        self._requests = requests
        self._answers: dict[int, socket.socket] = {}
        self._ended, wakeup = socket.socketpair()
        wakeup.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup.detach())

    def serve(self) -> None:
        """Until the other side closes the socket."""
        while True:
            ready, _, _ = select([self._requests, self._ended], [], [])
            if self._ended in ready:
                self._ended.recv(1000)
                self._reap()
            elif not self._answer():
                return

    def _answer(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._requests, 1 << 20, 4)
        if not message:
            return False
        request = json.loads(message)
        pid = os.fork()
        if pid == 0:
            self._become(request, descriptors)
        for descriptor in descriptors[:3]:
            os.close(descriptor)
        self._answers[pid] = socket.socket(fileno=descriptors[3])
        self._answers[pid].send(b"%d" % pid)
        return True

    def _become(self, request: dict, descriptors: list[int]) -> NoReturn:
        os.close(signal.set_wakeup_fd(-1))
        for mine in (self._requests, self._ended, *self._answers.values()):
            mine.close()
        for standard, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, standard)
        for descriptor in descriptors:
            os.close(descriptor)
        os.setsid()
        die_with_parent()
        os.chdir(request["cwd"])
        be_module(request["command"], request["environment"])

    def _reap(self) -> None:
        """Of processes that have ended, those asked for, and those whose own parents were killed."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if answers := self._answers.pop(pid, None):
                with answers:
                    answers.send(b"%d" % os.waitstatus_to_exitcode(status))


def main() -> None:
    """Import, then serve."""
    die_with_parent()
    become_subreaper = 36
    ctypes.CDLL(None).prctl(become_subreaper, 1)
    for name in MODULES:
        importlib.import_module(name)
    for name in ("launchers.local.local_launch", "launchers.local.start_ranks"):
        importlib.import_module(name).subprocess = SimpleNamespace(Popen=ForkedModule)  # type: ignore[attr-defined]
    run_commands.subprocess = SimpleNamespace(**vars(subprocess) | {"run": run_module, "Popen": ForkedModule})  # type: ignore[assignment]
    gc.collect()
    gc.freeze()
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"a fork would lose {threads - 1} threads"
    requests = socket.socket(fileno=int(sys.argv[1]))
    requests.send(b"ready")
    Server(requests).serve()


if __name__ == "__main__":
    main()
