"""Training on this machine through the deepspeed launcher."""

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pretrain.config import Config
from pretrain.run_folder import EXIT_CODES, RunFolder, Status
from pretrain.signals import die_with_parent

_ADDRESS = "127.0.0.1"
_END_SECONDS = 30.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def gpu_count() -> int:
    """NVIDIA GPUs of this machine, found without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def train_locally(config_path: Path, config: Config, overrides: list[str], processes: int) -> int:
    """Train with `processes` processes; the exit code of the run (see pretrain.run_folder.EXIT_CODES)."""

    def run(folder: RunFolder) -> int:
        if sys.stderr.isatty():  # there, ten seconds of silence look like a fault
            print(f"starting {processes} process{'es' if processes > 1 else ''} of {folder.path}", file=sys.stderr)
        port = free_port()
        ranks = {"localhost": _devices(processes)}
        command = launch_command(sys.executable, ranks, 0, _ADDRESS, port, [str(config_path), *overrides])
        return _run(command, rank_environment(processes), on_stop=lambda: ask_to_stop(folder))

    return supervise(RunFolder(config.run.dir), run)


def supervise(folder: RunFolder, run: Callable[[RunFolder], int]) -> int:
    """Start a run's processes by `run` and wait for their end; the exit code of the run.

    The run's status.json is believed, not the launcher's exit code that `run` returns, which is 0 after some kills.
    """
    folder.create()
    with folder.lock():  # refused while another run holds the folder
        folder.stop.unlink(missing_ok=True)  # left by an earlier run; from here on it asks this one
    before = folder.status.stat().st_mtime_ns if folder.status.exists() else None
    code = run(folder)
    if not folder.status.exists() or folder.status.stat().st_mtime_ns == before:
        if code != EXIT_CODES["failed"]:  # otherwise a process said why
            print(f"error: training did not start; its processes ended with code {code}", file=sys.stderr)
        return EXIT_CODES["failed"]
    status = _final_status(folder)
    folder.stop.unlink(missing_ok=True)  # asked for once more as the run ended
    if status.state == "failed" and folder.fail(status.reason, status.next_action):  # nobody was left to say so
        print(f"error: {folder.path}: {status.reason}; {status.next_action}", file=sys.stderr)
    elif status.state != "failed":
        print(_farewell(folder, status), file=sys.stderr)
    return EXIT_CODES[status.state]


def _farewell(folder: RunFolder, status: Status) -> str:
    how = f"{folder.path}: {status.state} after step {status.step:,} of {status.total_steps:,}"
    if status.state == "stopped":
        return f"{how}: {status.reason}; {status.next_action}"
    return f"{how}; `maskwright export {folder.path}` writes the model, `maskwright report {folder.path}` its page"


def launch_command(
    python: str | Path,
    ranks: Mapping[str, Sequence[int | str]],
    node: int,
    address: str,
    port: int,
    arguments: list[str],
) -> list[str]:
    """The half of the deepspeed launcher that starts the processes of one node.

    Its other half, which reaches further nodes, would only stand between: it does not pass signals on, so that killing
    it would leave the ranks behind.

    Args:
        ranks: the GPUs of each host, or on CPU as many numbers as processes.
        node: which of the hosts this is.
        address, port: where rank 0 listens.
        arguments: the config's path and the overrides.
    """
    world = base64.urlsafe_b64encode(json.dumps(ranks).encode()).decode()
    command = [str(python), "-m", "deepspeed.launcher.launch", "--log_level", "critical", f"--world_info={world}"]
    command += [f"--node_rank={node}", f"--master_addr={address}", f"--master_port={port}"]
    return [*command, "--module", "pretrain.train", "--config", *arguments]


def _final_status(folder: RunFolder) -> Status:
    """The status when the ranks have ended, which takes those of a killed launcher a moment."""
    deadline = time.monotonic() + _END_SECONDS
    while (status := folder.read_status()).state == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    return status


def _devices(processes: int) -> list[int | str]:
    """The GPUs that CUDA_VISIBLE_DEVICES grants (the launcher writes it anew for the ranks); on CPU, just numbers."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not gpu_count() or visible is None:
        return list(range(processes))
    return [int(name) if name.isdigit() else name for name in visible.split(",")][:processes]


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((_ADDRESS, 0))
        return int(probe.getsockname()[1])


def rank_environment(processes: int, cpu: bool = False) -> dict[str, str]:
    """The environment of this machine's processes: this one's, and what DeepSpeed and PyTorch should find there."""
    environment = dict(os.environ)
    if cpu or not gpu_count():
        environment["DS_ACCELERATOR"] = "cpu"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))
    environment["PYTHONUNBUFFERED"] = "1"
    environment.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")  # of torch about DeepSpeed: nobody can act on it
    environment["TOKENIZERS_PARALLELISM"] = "false"
    return environment


def _run(command: list[str], environment: dict[str, str], on_stop: Callable[[], None]) -> int:
    """Run the launcher in a session of its own; Ctrl-C and SIGTERM here become a request to stop, also if repeated.

    What comes when the launcher has ended is ignored, so that the exit code is that of the run.
    """
    child = subprocess.Popen(
        command, env=environment, start_new_session=True, preexec_fn=lambda: die_with_parent(signal.SIGTERM)
    )
    with on_stop_signals(on_stop):
        return child.wait()


@contextlib.contextmanager
def on_stop_signals(react: Callable[[], None]) -> Iterator[None]:
    """Meanwhile, Ctrl-C, SIGTERM and SIGUSR1 make this process do no more than `react`, also if repeated.

    What comes later is ignored, so that the exit code is that of the run.
    """
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: react())
    try:
        yield
    finally:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def ask_to_stop(folder: RunFolder) -> None:
    """Have the run stop after a checkpoint, and say so."""
    print(f"\nstopping after a checkpoint; to stop at once, kill the processes of {folder.path}", file=sys.stderr)
    folder.stop.touch()
