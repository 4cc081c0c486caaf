"""Local launch: start the training processes of this machine, and record how they ended."""

import contextlib
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from data_prep.common.errors import UserError
from data_prep.common.files import write_file
from data_prep.common.processes import die_with_parent, module_command
from data_prep.common.reading import read_bytes
from launchers.local.gpus import check_device, visible_gpus
from launchers.local.start_ranks import ADDRESS
from launchers.local.stop_signals import StopSignals, on_stop_signals
from pretrain.checkpoint import committed, verify
from pretrain.config import Config
from pretrain.distributed import Threads
from pretrain.resuming import expected_start
from pretrain.run import ALL_DONE, COMMAND_VARIABLE, EXIT_CODES, RunFolder, StartPhase, Status

_END_SECONDS = 30.0
_INTERRUPTED = 130  # exit code of a run that a second Ctrl-C ended: the usual code for Ctrl-C


def train_locally(config_path: Path, config: Config, overrides: list[str], processes: int) -> int:
    """Train with `processes` processes, or say that the run is complete. Returns the exit code of the run."""
    folder = RunFolder(config.run.dir)
    if _is_completed(config, folder):
        return EXIT_CODES["completed"]
    if notice := check_device():
        print(notice, flush=True)
    folder.create()
    with folder.lock() as lock:  # refused while another run holds the folder; the processes inherit it
        before = None
        with contextlib.suppress(UserError):
            before = read_bytes(folder.status)
        stop = StopSignals(folder, folder.status_time())
        with on_stop_signals(stop):
            with _status_errors(folder):
                folder.stop.unlink(missing_ok=True)  # an earlier request
                phase = StartPhase.LIBRARIES.value
                folder.write_status("starting", _saved_step(folder), config.train.steps, phase, "none")
            number = f"{processes} process{'es' if processes > 1 else ''}"
            StartPhase.begin(f"Starting {folder.path} with {number}, {Threads.of(processes)}.")
            arguments = [str(config_path), *overrides]
            with socket.create_server((ADDRESS, 0)) as free:
                port = free.getsockname()[1]
            devices = ",".join((visible_gpus() or list(map(str, range(processes))))[:processes])
            command = module_command("launchers.local.start_ranks", str(port), devices, *arguments)
            typed = ["maskwright", "train", *arguments, "--procs", str(processes)]
            code = _run(command, {COMMAND_VARIABLE: shlex.join(typed)}, lock, stop)
        with contextlib.suppress(OSError):  # the disk cannot be written
            folder.stop.unlink(missing_ok=True)  # requested again while the run ended
        if stop.at_once and not folder.recorded_status().is_over:
            return _end_at_once(folder, stop.at_once)
        said_why = code == EXIT_CODES["failed"]
        if said_why and folder.recorded_status().state == "starting":
            with contextlib.suppress(OSError):
                if before is None:
                    folder.status.unlink(missing_ok=True)
                else:
                    write_file(folder.status, before)
            return code
        return _conclude(folder, folder.final_status(), said_why)


def _is_completed(config: Config, folder: RunFolder) -> bool:
    """Whether the run made all its steps and its last checkpoint is intact. Prints it, as there is nothing to start."""
    last = expected_start(config)
    if last is None or last.step != config.train.steps or verify(last.path):
        return False
    try:
        status = folder.read_status()
    except UserError:
        return False
    if status.state != "completed" or status.step != last.step:
        return False
    print(_end_message(folder, status), file=sys.stderr)
    return True


@contextlib.contextmanager
def _status_errors(folder: RunFolder) -> Iterator[None]:
    """Replace an OSError by a UserError: the status of the run cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{folder.status} cannot be written ({error.strerror}), so the state of the run is not recorded. Fix the "
            "disk, then run the same command again."
        ) from None


def _saved_step(folder: RunFolder) -> int:
    return max((step for step, _ in committed(folder.checkpoints)), default=0)


def _end_at_once(folder: RunFolder, signal_name: str) -> int:
    """Record that a signal ended the run's processes before a checkpoint. Returns the exit code."""
    status, saved = folder.recorded_status(), _saved_step(folder)
    is_starting = status.state == "starting"
    reason = f"ended by {signal_name} {'before training began' if is_starting else 'at once'}"
    action = f"run the same command again to {f'resume after step {saved}' if saved else 'start'}"
    with _status_errors(folder):
        folder.write_status("stopped", saved, status.total_steps, reason, action, retry=False)
    print(_end_message(folder, folder.recorded_status()), file=sys.stderr)
    return EXIT_CODES["stopped"] if is_starting else _INTERRUPTED


def _conclude(folder: RunFolder, status: Status, said_why: bool) -> int:
    """Print how a run ended, and record a failure that its processes did not record. Returns the exit code of the run.

    Args:
        said_why: the processes have printed why the run failed.
    """
    if status.state != "failed":
        print(_end_message(folder, status), file=sys.stderr)
        return EXIT_CODES[status.state]
    reason, rest = status.reason, status.next_action
    if said_why:
        reason = f"its processes ended after step {status.step:,} and could not write here why; see what they printed"
    try:
        is_news = folder.fail(reason, status.next_action)
    except OSError as error:
        is_news, rest = True, f"status.json cannot be written ({error.strerror})"
    if is_news and not said_why:
        print(f"error: {folder.path}: {status.reason}; {rest}", file=sys.stderr)
    return EXIT_CODES["failed"]


def _end_message(folder: RunFolder, status: Status) -> str:
    how = f"{folder.path}: {status.state} after step {status.step:,} of {status.total_steps:,}"
    if status.state == "stopped" or status.reason != ALL_DONE:
        return f"{how}: {status.reason}; {status.next_action}"
    return f"{how}; `maskwright export {folder.path}` writes the model, `maskwright report {folder.path}` its page"


def _run(command: list[str], variables: dict[str, str], lock: IO[str], stop: StopSignals) -> int:
    """Run the starter of the processes in a separate session, until all exit. Returns its exit code."""
    read_end, write_end = os.pipe()  # standard input of all processes: it closes when the last one exits
    child = subprocess.Popen(
        command,
        env=os.environ | variables | RunFolder.inheritable(lock),
        stdin=read_end,
        pass_fds=[lock.fileno()],
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),
    )
    os.close(read_end)

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.kill()  # it may not have its process group yet

    stop.kill = kill
    if stop.at_once:  # before there was a process
        kill()
    code = child.wait()
    if code < 0:  # it was killed, so it cannot end the others
        kill()
    last_end = select.poll()
    last_end.register(write_end, 0)
    last_end.poll(1000 * _END_SECONDS)
    os.close(write_end)
    return code
