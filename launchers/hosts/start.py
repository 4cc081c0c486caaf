"""A run's processes on its hosts: over ssh, or through DeepSpeed's runner and pdsh or mpirun."""

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

from data_prep.errors import UserError
from data_prep.files import atomic_writer
from data_prep.processes import die_with_parent
from launchers.hostfile import format_hostfile
from launchers.hosts.job import HostsJob, exposed, forwarded
from launchers.hosts.remote import ssh_command
from launchers.ranks import command_of
from launchers.stopping import StopSignals, on_stop_signals

_GRACE_SECONDS = 60.0
"""How long the other hosts may go on when one host's processes have ended."""


def start_over_ssh(job: HostsJob, address: str, port: int, stop: StopSignals) -> int:
    """Start every host's processes, wait for their end, and end them if this process ends; 0 if all ended well."""
    nodes: list[subprocess.Popen[bytes]] = []

    def close_connections() -> None:  # each host then ends its processes
        for node in nodes:
            node.kill()

    stop.kill = close_connections
    with on_stop_signals(stop):
        for host, request in zip(job.hosts, requests(job, address, port), strict=True):
            node = subprocess.Popen(
                ssh_command(job, host, "launchers.hosts.node"),
                stdin=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for this process alone
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),
            )
            nodes.append(node)
            assert node.stdin
            node.stdin.write(f"{json.dumps(request)}\n".encode())
            node.stdin.flush()
        if stop.at_once:  # before all hosts had been asked
            stop.kill()
        return _wait(nodes)


def requests(job: HostsJob, address: str, port: int) -> list[dict[str, object]]:
    """What each host's node.py is to start, in rank order."""
    devices, nodes = range(job.processes), len(job.hosts)
    arguments = [str(job.config), *job.overrides]
    shared = {"environment": forwarded(os.environ), "processes": job.processes, "cpu": job.cpu}
    commands = [command_of(str(job.python), devices, node, nodes, address, port, arguments) for node in range(nodes)]
    return [{"command": command, **shared} for command in commands]


def _wait(nodes: list["subprocess.Popen[bytes]"]) -> int:
    """Wait for all hosts; when one has ended, the others have a while, and then their connections are closed."""
    deadline = None
    while any(node.poll() is None for node in nodes):
        if deadline is None and any(node.poll() is not None for node in nodes):
            deadline = time.monotonic() + _GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            for node in nodes:
                if node.stdin and not node.stdin.closed:
                    node.stdin.close()
        time.sleep(0.2)
    return next((node.returncode for node in nodes if node.returncode), 0)


def runner_command(job: HostsJob, launcher: str, hostfile: Path, address: str, port: int) -> list[str]:
    """DeepSpeed's own command line for pdsh or openmpi.

    Raises:
        UserError: for text that pdsh would hand to a shell which reads something else.
    """
    command = [str(job.python), "-m", "deepspeed.launcher.runner", "--hostfile", str(hostfile)]
    command += ["--master_addr", address, "--master_port", str(port)]
    if launcher == "pdsh":
        for text in (str(job.working_dir), str(job.python), str(job.config), *job.overrides):
            if shlex.quote(text) != text:
                raise UserError(f"pdsh cannot hand on {text!r} as it is: use --launcher ssh, or the config file")
        command += ["--num_nodes", str(len(job.hosts)), "--num_gpus", str(job.processes)]
    else:  # it takes all of the hostfile; each process would be bound to one core
        mpirun = f"--bind-to none -x MASTER_ADDR={address} -x MASTER_PORT={port}"
        command += ["--launcher", "openmpi", "--launcher_args", mpirun]
    return [*command, "--no_local_rank", "--module", "pretrain.train", "--config", str(job.config), *job.overrides]


def refuse_exposure(launcher: str) -> None:
    """Refuse to start DeepSpeed's runner with secrets in the environment that it would write on command lines.

    Raises:
        UserError: naming them.
    """
    if names := exposed(os.environ):
        raise UserError(
            f"{', '.join(names)} would stand on {launcher}'s command line, for everybody on the hosts to read: "
            "use --launcher ssh, or unset them and keep them in files such as ~/.mlflow/credentials"
        )


def write_hostfile(job: HostsJob) -> Path:
    """Write RUN/hostfile: the chosen hosts alone, each with as many slots as processes."""
    path = job.run_dir / "hostfile"
    with atomic_writer(path) as file:
        file.write(format_hostfile(job.hosts, len(job.hosts), job.processes).encode())
    return path


def start_runner(command: list[str], stop: StopSignals) -> int:
    """Run DeepSpeed's runner to its end."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),
    )
    stop.kill = child.kill
    with on_stop_signals(stop):
        return child.wait()
