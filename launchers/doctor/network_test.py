"""Measure the speed of the nodes of a Slurm allocation, and the bandwidth between them, for `cluster_checks`.

`srun --label python -m launchers.doctor.network_test MASTER PORT PEER DEVICE` runs one process per GPU, or per node.
MASTER is the first node and PEER the last one. Rank 0 prints the measurements of all processes.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from launchers.doctor.node_report import print_value
from pretrain.distributed import all_gather_json, interface_to, open_store

_MOST_ROUNDS = 31  # of pairs: a second or two each
_TIMEOUT = timedelta(seconds=120)
_WARM_UP, _CALLS = 2, 10


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """All pairs of nodes, in rounds with each node at most once (circle method)."""
    players: list[int | None] = [*range(nodes), *([None] if nodes % 2 else [])]
    turns = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        both = zip(players[:half], reversed(players[half:]), strict=True)
        turns.append([(min(a, b), max(a, b)) for a, b in both if a is not None and b is not None])
        players = [players[0], players[-1], *players[1:-1]]
    return turns


def main(master: str, port: str, peer: str, kind: str) -> None:
    """Join the other processes and measure with them."""
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    node, nodes, local = (int(os.environ[f"SLURM_{name}"]) for name in ("NODEID", "NNODES", "LOCALID"))
    device = torch.device("cuda", local % torch.cuda.device_count()) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, interface_to(peer if node == 0 else master))
    store = open_store(master, int(port), rank, world, _TIMEOUT)
    own: dict[str, Any] = {"host": os.environ["SLURMD_NODENAME"], "local": local}
    print_value(own)  # a process that prints it has reached rank 0
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=_TIMEOUT)
    own |= {"tflops": _matrix_products(device), "pairs": _pairs(device, node, world // nodes, nodes)}
    total = {"GB/s": _all_reduce(device, None)} if world > 1 else None
    ranks = all_gather_json(own)
    if rank == 0:
        hosts = [result["host"] for result in ranks[:: world // nodes]]
        pairs = [
            {"nodes": [hosts[a], hosts[b]], "GB/s": rate} for result in ranks for a, b, rate in result.pop("pairs")
        ]
        print_value({"host": own["host"], "backend": backend, "ranks": ranks, "all": total, "pairs": pairs})
    dist.barrier()
    dist.destroy_process_group()


def _matrix_products(device: torch.device) -> float:
    """TFLOP/s of this process while all processes compute: bf16 on a GPU, fp32 on a CPU."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a = torch.randn(size, size, device=device).to(dtype)
    dist.barrier()
    return 2 * size**3 / _median_seconds(lambda: torch.mm(a, a), device) / 1e12


def _pairs(device: torch.device, node: int, each: int, nodes: int) -> list[tuple[int, int, float]]:
    """Measure all-reduces between this node and each other node. The first process of a pair returns the result."""
    rates = []
    for turn in rounds(nodes)[:_MOST_ROUNDS]:
        dist.barrier()
        for pair in turn:
            if node in pair:
                ranks = [member * each + local for member in pair for local in range(each)]
                group = dist.new_group(ranks, timeout=_TIMEOUT, use_local_synchronization=True)
                rate = _all_reduce(device, group)
                dist.destroy_process_group(group)
                rates += [(*pair, rate)] if dist.get_rank() == ranks[0] else []
    return rates


def _all_reduce(device: torch.device, group: Any) -> float:
    """Measure the bus bandwidth of a group in GB/s: 2 (n - 1) / n of a process's bytes in each second."""
    size, length = dist.get_world_size(group), 16 << 20 if device.type == "cuda" else 1 << 20
    values = torch.zeros(length, device=device)
    seconds = _median_seconds(lambda: dist.all_reduce(values, group=group), device)
    return 2 * (size - 1) / size * values.nbytes / seconds / 1e9


def _median_seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Median time of a call, after some warm-up calls."""
    seconds = []
    for _ in range(_WARM_UP + _CALLS):
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[_WARM_UP:])


if __name__ == "__main__":
    main(*sys.argv[1:])
