"""One attempt to train on an allocation: an srun that starts all ranks, and what they write to the run folder."""

import contextlib
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.common.processes import module_command
from data_prep.common.reading import json_or_none
from launchers.slurm import client
from launchers.slurm.batch_script import cores_of
from pretrain.config import Config
from pretrain.run import RunFolder, State, Status

HOSTS_VARIABLE, PORT_VARIABLE = "MASKWRIGHT_HOSTS", "MASKWRIGHT_PORT"
"""Environment variables of the ranks: the hosts in rank order, and rank 0's port on the first host."""

_PORTS = range(12000, 32000)
_POLL_SECONDS = 0.5
_END_SECONDS = 30.0  # for ranks that outlive srun


def python_command(config: Config, module: str, working_dir: Path) -> list[str]:
    """The srun arguments that run a module of ours with the config. Container options are for the pyxis plugin.

    --export=ALL: without it, a job submitted with --export=NONE would start its tasks with an empty environment.
    """
    words, container, path = ["--export=ALL"], config.cluster.container, str(RunFolder(config.run.dir).job_config)
    command = module_command(module, path)
    if container:
        command = module_command(module, path, python=container.python, version=(3, 10))  # its version is unknown
        words += [f"--container-image={container.image}", f"--container-workdir={working_dir}"]
        if container.mounts:
            words.append(f"--container-mounts={','.join(container.mounts)}")
    return [*words, *command]


def train_command(config: Config, hosts: Sequence[str]) -> list[str]:
    """The srun command with one task per rank. 60 s after the first rank exits, srun kills the others (--wait)."""
    rank = python_command(config, "launchers.slurm.node_entry", Path.cwd())
    return client.srun(rank, hosts, config.cluster.gpus_per_node, cores_of(config.cluster), ["--wait=60"])


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


def run_step(
    step: Sequence[str], variables: Mapping[str, str], is_overdue: Callable[[], bool], is_too_late: Callable[[], bool]
) -> int | None:
    """Start srun and wait for it. Returns its exit code; None if it was still running.

    Args:
        variables: environment variables of the ranks, added to the variables of this process.
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


@dataclass(frozen=True)
class Refusal:
    """Reason for ranks that exit before they hold the run folder, as written by `pretrain.run.report_failure`."""

    reason: str
    retry: bool


class AttemptStatus:
    """The status that one attempt writes to the run folder. Create it before the attempt starts.

    Args:
        refusal: file for ranks that may not write status.json (pretrain.run.report_failure).
    """

    def __init__(self, run: RunFolder, refusal: Path):
        self._run, self._refusal = run, refusal
        refusal.unlink(missing_ok=True)
        self._before = run.status_time()
        self.state: State | None = None  # final state of the run, set by `seconds_over`
        self.over_since: float | None = None  # when the run was first seen to be over, by time.monotonic

    def seconds_over(self) -> float:
        """Seconds since the status said that the run is over; 0 during the run. srun may still be running."""
        now = time.monotonic()
        if self.over_since is None and (status := self._own()) and status.is_over:
            self.state, self.over_since = status.state, now
        return 0.0 if self.over_since is None else now - self.over_since

    def final(self, wait: bool) -> Status | None:
        """Final status of the attempt; None if it never started (see `refusal` for the reason).

        Args:
            wait: wait for ranks that are about to exit.
        """
        deadline = time.monotonic() + (_END_SECONDS if wait else 0.0)
        while (status := self._own()) and not status.is_over and self._run.is_held():
            if time.monotonic() > deadline:
                return Status("failed", status.step, status.total_steps, "its processes do not end", "", time.time())
            time.sleep(0.2)
        return self._run.read_status() if status else None

    def refusal(self, code: int | None) -> Refusal:
        """Reason why the attempt never started. code: exit code of srun."""
        unknown = Refusal(f"training did not start (srun exit code {code})", retry=True)
        return json_or_none(self._refusal, Refusal) or unknown

    def _own(self) -> Status | None:
        if self._run.status_time() == self._before or self._refusal.exists():  # another run may have written it
            return None
        return self._run.status_or_none()


def host_of(holder: str, job_id: int) -> str | None:
    """The host of a lock's holder (RunFolder.holder), if the holder belongs to this job."""
    match = re.fullmatch(rf"process \d+ on (\S+), Slurm job {job_id}", holder)
    return match[1] if match else None
