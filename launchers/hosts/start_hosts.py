"""Start a run's processes on its hosts over ssh, and wait for them."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping

from data_prep.common.processes import die_with_parent
from launchers.hosts.ssh import HostsJob
from launchers.local import StopSignals, command_of, supervise
from pretrain.run import RunFolder

FORWARDED = (
    *("MLFLOW_", "NCCL_", "GLOO_", "TORCH", "CUDA_", "TRITON_", "DS_", "OMP_", "UCX_"),
    *("HF_", "AWS_", "GOOGLE_", "AZURE_", "FSSPEC_", "WANDB_", "MASKWRIGHT_"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
"""Name prefixes of environment variables that affect a run and mean the same on every host."""
_OF_ONE_HOST = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH")
_GRACE_SECONDS = 60.0
"""Seconds for the other hosts to exit after one host's processes have exited."""


def train_on_hosts(job: HostsJob, address: str, port: int) -> int:
    """Train on all hosts, with rank 0 at this address and port. Returns the exit code of the run."""
    return supervise(RunFolder(job.run_dir), lambda stop: _start(job, address, port, stop))


def _start(job: HostsJob, address: str, port: int, stop: StopSignals) -> int:
    """Start the processes of all hosts and wait for them. They end with this process. Returns 0 on success."""
    nodes: list[subprocess.Popen[bytes]] = []

    def close_connections() -> None:  # each host then ends its processes
        for node in nodes:
            node.kill()

    stop.kill = close_connections
    for host, request in zip(job.hosts, requests(job, address, port), strict=True):
        node = subprocess.Popen(
            job.ssh_command(host),
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is handled by this process only
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
        nodes.append(node)
        assert node.stdin
        node.stdin.write(f"{json.dumps(request)}\n".encode())
        node.stdin.flush()
    if stop.at_once:  # before all hosts received their request
        stop.kill()
    return _wait(nodes)


def requests(job: HostsJob, address: str, port: int) -> list[dict[str, object]]:
    """The requests to the hosts (see host_entry), in rank order."""
    devices, nodes = range(job.processes), len(job.hosts)
    arguments = [str(job.config), *job.overrides]
    environment = forwarded(os.environ) | ({"DS_ACCELERATOR": "cpu"} if job.cpu else {})
    commands = [command_of(str(job.python), devices, node, nodes, address, port, arguments) for node in range(nodes)]
    return [{"command": command, "environment": environment} for command in commands]


def forwarded(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables to send to the hosts, including secrets."""
    names = [name for name in environment if name.startswith(FORWARDED) and name not in _OF_ONE_HOST]
    return {name: environment[name] for name in names}


def _wait(nodes: list["subprocess.Popen[bytes]"]) -> int:
    """Wait for all hosts. After the first one exits, the others get a grace period before the end."""
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
