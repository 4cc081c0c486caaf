"""A training process with cores of its own: DeepSpeed's launcher starts this, which becomes `pretrain.train`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from data_prep.errors import UserError


def share(cpus: Sequence[int], part: int, parts: int) -> list[int]:
    """One of `parts` nearly equal runs of `cpus`.

    Raises:
        UserError: when there are fewer of them than parts.
    """
    if len(cpus) < parts:
        raise UserError(
            f"{parts} processes cannot have a core each of the {len(cpus)} that this job has of the node: raise "
            "--cpus-per-process, or leave out --bind cores"
        )
    return list(cpus[part * len(cpus) // parts : (part + 1) * len(cpus) // parts])


def place(gpu_nodes: Sequence[int], rank: int) -> int:
    """Which share a process gets: GPUs in the order of their NUMA nodes, so that shares in that order are near."""
    return sorted(range(len(gpu_nodes)), key=lambda gpu: gpu_nodes[gpu]).index(rank)


def by_locality(cpus: set[int], system: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """The CPUs in the order of NUMA nodes, packages and cores, so that a run of them shares caches and memory."""

    def where(cpu: int) -> tuple[int, ...]:
        folder = system / f"cpu{cpu}"
        nodes = [int(path.name.removeprefix("node")) for path in folder.glob("node[0-9]*")]
        topology = [_number(folder / "topology" / name) for name in ("physical_package_id", "core_id")]
        return (*(nodes[:1] or [0]), *topology, cpu)

    return sorted(cpus, key=where)


def gpu_numa_nodes(
    gpus: Path = Path("/proc/driver/nvidia/gpus"), devices: Path = Path("/sys/bus/pci/devices")
) -> list[int]:
    """The NUMA node of each NVIDIA GPU of this machine, in the order of their PCI addresses."""
    return [_number(devices / path.name.lower() / "numa_node") for path in sorted(gpus.glob("*"))]


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def main(arguments: list[str]) -> int:
    """Keep to the share of LOCAL_RANK, and become the training process."""
    rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_SIZE"])
    nodes = gpu_numa_nodes()
    try:
        cpus = share(by_locality(os.sched_getaffinity(0)), place(nodes, rank) if len(nodes) == size else rank, size)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    os.sched_setaffinity(0, cpus)
    os.execv(sys.executable, [sys.executable, "-u", "-m", "pretrain.train", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
