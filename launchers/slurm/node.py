"""A node's part, once on each: `python -m launchers.slurm.node JOB_JSON` becomes DeepSpeed's launcher, without ssh."""

import os
import sys
from pathlib import Path

from data_prep.errors import UserError
from launchers.slurm.attempt import Attempt
from launchers.slurm.job import Job, read_job
from pretrain.interfaces import interface_to
from pretrain.rendezvous import LOOPBACK
from pretrain.run_folder import refuse


def command(job: Job, attempt: Attempt, rank: int) -> list[str]:
    """DeepSpeed's launcher, for the node of that rank among the attempt's hosts, under this very Python."""
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", str(attempt.hostfile)]
    launcher += ["--num_nodes", str(len(attempt.hosts)), "--num_gpus", str(job.processes_per_node)]
    launcher += ["--no_ssh", "--node_rank", str(rank)]
    launcher += ["--master_addr", attempt.hosts[0], "--master_port", str(attempt.port), "--no_local_rank", "--module"]
    return [*launcher, "pretrain.train" if job.bind == "none" else "launchers.slurm.bound", "--config", str(job.config)]


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


def rank_of(host: str, attempt: Attempt) -> int:
    """The place of a host in the attempt, which need not have all nodes of the job.

    Raises:
        UserError: when it has none.
    """
    if host not in attempt.hosts:
        raise UserError(f"{host} is not one of the nodes to train on ({', '.join(attempt.hosts)})")
    return attempt.hosts.index(host)


def interface_of(job: Job, attempt: Attempt, rank: int) -> str:
    """The interface that the config names, or the one that leads to the other nodes; loopback for one node."""
    other = attempt.hosts[0] if rank else attempt.hosts[-1]
    return job.interface or interface_to(other if len(attempt.hosts) > 1 else LOOPBACK)


def main(arguments: list[str]) -> int:
    """Become the launcher; 1 and one sentence when this node cannot train."""
    host = os.environ["SLURMD_NODENAME"]
    try:
        job, attempt = read_job(Path(arguments[0])), Attempt.from_environment()
        rank = rank_of(host, attempt)
        check_gpus(job, os.environ.get("CUDA_VISIBLE_DEVICES"), host)
        interface = interface_of(job, attempt, rank)
    except UserError as error:
        refuse(str(error), retry=False)
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if job.interface or name not in os.environ:  # a user who has set it knows better
            os.environ[name] = interface
    print(f"node {rank}: {host}, interface {os.environ['GLOO_SOCKET_IFNAME']}", flush=True)
    launcher = command(job, attempt, rank)
    os.execv(launcher[0], launcher)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
