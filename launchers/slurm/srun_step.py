"""The training job step: one srun that starts all ranks, watched until it exits."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launchers.slurm import client
from launchers.slurm.job_file import JobFile

HOSTS_VARIABLE, PORT_VARIABLE = "MASKWRIGHT_HOSTS", "MASKWRIGHT_PORT"
"""Environment variables of the ranks: the hosts in rank order, and rank 0's port on the first host."""

_PORTS = range(12000, 32000)
_POLL_SECONDS = 0.5


def python_command(job: JobFile, module: str, working_dir: Path) -> list[str]:
    """The srun arguments that run `python -m MODULE JOB_JSON`. Container options are those of pyxis.

    --export=ALL: without it, a job submitted with --export=NONE would start its tasks with an empty environment.
    """
    words, python = ["--export=ALL"], str(job.python)
    if job.container:
        python = job.container.python
        words += [f"--container-image={job.container.image}", f"--container-workdir={working_dir}"]
        if job.container.mounts:
            words.append(f"--container-mounts={','.join(job.container.mounts)}")
    return [*words, python, "-m", module, str(job.path)]


def train_command(job: JobFile, hosts: Sequence[str]) -> list[str]:
    """The srun command with one task per rank. 60 s after the first rank exits, srun kills the others (--wait)."""
    node = python_command(job, "launchers.slurm.node_entry", Path.cwd())
    return client.srun(node, hosts, job.processes_per_node, job.cpus_per_process, ["--wait=60"])


def free_port(job_id: int) -> int:
    """A free port on all addresses of this host; the job's id decides where the search starts.

    Rank 0 listens on the first host of the step, which usually is this host.
    """
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    for offset in range(len(_PORTS)):
        port = _PORTS[(job_id + offset) % len(_PORTS)]
        with contextlib.suppress(OSError), socket.create_server(("", port), family=family, dualstack_ipv6=both):
            return port
    raise RuntimeError("no free port")  # 20,000 listeners on one host


def run(
    step: Sequence[str],
    variables: Mapping[str, str],
    is_overdue: Callable[[], bool],
    is_too_late: Callable[[], bool],
) -> int | None:
    """Wait for srun. Returns its exit code; None if it was still running.

    Args:
        variables: environment variables of the ranks, added to those of this process.
        is_overdue: whether srun should have exited; if so, it is ended.
        is_too_late: whether Slurm is about to kill everything; if so, srun is left alone.
    """
    srun = client.start_step(step, os.environ | variables)
    while True:
        try:
            return srun.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if is_too_late():
                return None
            if is_overdue():
                client.end_step(srun)
                return None
