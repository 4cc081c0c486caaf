"""A node's part, once on each: `python -m launchers.slurm.node JOB_JSON` becomes DeepSpeed's launcher, without ssh."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from data_prep.errors import UserError
from launchers.slurm.attempt import Attempt
from launchers.slurm.job import Job, read_job
from pretrain.run_folder import refuse


def command(job: Job, attempt: Attempt, rank: int) -> list[str]:
    """DeepSpeed's launcher, for the node of that rank among the attempt's hosts."""
    launcher = [str(job.python), "-m", "deepspeed.launcher.runner", "--hostfile", str(attempt.hostfile)]
    launcher += ["--num_nodes", str(len(attempt.hosts)), "--num_gpus", str(job.processes_per_node)]
    launcher += ["--no_ssh", "--node_rank", str(rank)]
    launcher += ["--master_addr", attempt.hosts[0], "--master_port", str(attempt.port)]
    return [*launcher, "--no_local_rank", "--module", "pretrain.train", "--config", str(job.config), *job.overrides]


def check_gpus(job: Job, visible: str | None, host: str) -> None:
    """Refuse GPUs that are not the first ones of the node.

    DeepSpeed's launcher takes the first it can see, whichever of them Slurm meant. They differ where a node is shared
    and Slurm does not hide the others' GPUs (ConstrainDevices in cgroup.conf).
    """
    first = ",".join(map(str, range(job.processes_per_node)))
    if not job.cpu and visible not in (None, first):
        raise UserError(
            f"Slurm granted GPUs {visible} of {host}, but DeepSpeed would use GPUs {first}: take whole nodes, by "
            "submitting with --exclusive"
        )


def interface_to(host: str) -> str:
    """The network interface of this machine that leads to `host`."""
    address = socket.getaddrinfo(host, None)[0][4][0]
    route = subprocess.run(["ip", "-oneline", "route", "get", str(address)], capture_output=True, text=True, check=True)
    words = route.stdout.split()
    return words[words.index("dev") + 1]


def main(arguments: list[str]) -> int:
    """Become the launcher; 1 and one sentence when this node cannot train."""
    job, attempt = read_job(Path(arguments[0])), Attempt.from_environment()
    rank, host = int(os.environ["SLURM_NODEID"]), socket.gethostname()
    try:
        check_gpus(job, os.environ.get("CUDA_VISIBLE_DEVICES"), host)
        # Talk to the other nodes over the interface that leads to them, unless the user has named one.
        interface = interface_to(attempt.hosts[0] if rank else attempt.hosts[-1])
    except UserError as error:
        refuse(str(error), retry=False)
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, interface)
    print(f"node {rank}: {host}, interface {os.environ['GLOO_SOCKET_IFNAME']}", flush=True)
    launcher = command(job, attempt, rank)
    os.execv(launcher[0], launcher)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
