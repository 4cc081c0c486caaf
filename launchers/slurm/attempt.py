"""One start of a run on the nodes of an allocation: what each node must know, handed on in the environment."""

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from data_prep.files import atomic_writer
from launchers.hostfile import format_hostfile
from launchers.slurm.job import Job

_PORTS = range(12000, 32000)


@dataclass(frozen=True)
class Attempt:
    """Hosts in rank order, the hostfile that names them, and where rank 0 listens (on the first)."""

    hosts: tuple[str, ...]
    hostfile: Path
    port: int

    @property
    def environment(self) -> dict[str, str]:
        """For `python -m launchers.slurm.node` on each host."""
        return {
            "MASKWRIGHT_HOSTS": " ".join(self.hosts),
            "MASKWRIGHT_HOSTFILE": str(self.hostfile),
            "MASKWRIGHT_PORT": str(self.port),
        }

    @classmethod
    def from_environment(cls) -> "Attempt":
        """The attempt that this process is part of."""
        hosts = tuple(os.environ["MASKWRIGHT_HOSTS"].split())
        return cls(hosts, Path(os.environ["MASKWRIGHT_HOSTFILE"]), int(os.environ["MASKWRIGHT_PORT"]))


def prepare(job: Job, job_id: int, hosts: list[str]) -> Attempt:
    """Write the hostfile and choose the port, one that is free on this host, which is mostly the first.

    Raises:
        UserError: when the hosts are not `job.nodes`: DeepSpeed would train on fewer without a word.
    """
    text = format_hostfile(hosts, job.nodes, job.processes_per_node)
    path = job.folder / f"hostfile-{job_id}"
    with atomic_writer(path) as file:
        file.write(text.encode())
    return Attempt(tuple(hosts), path, free_port(job_id))


def free_port(job_id: int) -> int:
    """A port that follows from the job's id, or the next one that nobody listens on, on any address of this host."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    for offset in range(len(_PORTS)):
        port = _PORTS[(job_id + offset) % len(_PORTS)]
        with contextlib.suppress(OSError), socket.socket(family) as probe:  # which does not listen
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if both:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("", port))
            return port
    raise RuntimeError("no free port")  # 20,000 listeners on one host
