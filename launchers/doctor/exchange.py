"""Measures the processes of an allocation together: `srun python -m launchers.doctor.exchange MASTER PORT PEER KIND`.

MASTER is the address of the first node, PEER that of the last, KIND cuda or cpu. One process a GPU, or a node where
there is none.
Each prints what it has measured (see launchers.doctor.wire).
"""

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from data_prep.errors import UserError
from launchers.doctor.pairs import clock_offset, rounds
from launchers.doctor.wire import encode
from pretrain.interfaces import interface_to
from pretrain.store import open_store

MOST_ROUNDS = 31  # of pairs: a second or two each
_TIMEOUT = timedelta(seconds=120)
_SECONDS = 0.4  # for each rate
_PINGS = 10


def main(master: str, port: int, peer: str, kind: str) -> None:
    """Join the others, measure, and print."""
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    node, nodes = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_NNODES"])
    local = int(os.environ["SLURM_LOCALID"])
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
    _choose_interface(peer if node == 0 else master)
    backend = "gloo" if device.type == "cpu" else "nccl"
    store = open_store(master, port, rank, world, _TIMEOUT)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=_TIMEOUT)
    each = world // nodes
    found: dict[str, Any] = {"host": os.environ["SLURMD_NODENAME"], "node": node, "local": local, "backend": backend}
    found["gemm"] = _gemm(device)
    found["all"] = _all_reduce(device, None) if world > 1 else None
    found["pairs"] = _pairs(device, node, nodes, each)
    found["clocks"] = _clocks(rank, nodes, each)
    sys.stdout.write(encode(rank, found))
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


def _choose_interface(peer: str) -> None:
    """Let gloo and NCCL talk over the interface that leads to the other nodes, unless the user has named one."""
    with contextlib.suppress(UserError):  # PyTorch's own choice may do
        interface = interface_to(peer)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


def _gemm(device: torch.device) -> float:
    """TFLOP/s of matrix products, all processes working at once: bf16 on a GPU, fp32 on a CPU."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    dist.barrier()
    return 2 * size**3 / _median_seconds(lambda: torch.mm(a, b), device, None) / 1e12


def _pairs(device: torch.device, node: int, nodes: int, each: int) -> list[tuple[int, int, dict[str, float]]]:
    """All-reduces between the processes of this node and of each other one; told by the pair's first process."""
    found = []
    for turn in rounds(nodes, MOST_ROUNDS):
        dist.barrier()
        mine = next((pair for pair in turn if node in pair), None)
        if mine is None:
            continue
        ranks = [one * each + local for one in mine for local in range(each)]
        group = dist.new_group(ranks, timeout=_TIMEOUT, use_local_synchronization=True)
        measured = _all_reduce(device, group)
        dist.destroy_process_group(group)
        if dist.get_rank() == ranks[0]:
            found.append((*mine, measured))
    return found


def _all_reduce(device: torch.device, group: Any) -> dict[str, float]:
    """Bus bandwidth in GB/s (2 (n - 1) / n of the bytes a process gives) and latency in microseconds, in a group."""
    large = torch.zeros(16 << 20 if device.type == "cuda" else 1 << 20, device=device)
    small = torch.zeros(2, device=device)
    size = dist.get_world_size(group)
    latency = _median_seconds(lambda: dist.all_reduce(small, group=group), device, group)
    seconds = _median_seconds(lambda: dist.all_reduce(large, group=group), device, group)
    return {"GB/s": 2 * (size - 1) / size * large.nbytes / seconds / 1e9, "us": latency * 1e6}


def _median_seconds(work: Callable[[], Any], device: torch.device, group: Any) -> float:
    """The median time of one piece of work, repeated as often by all processes of the group."""

    def timed() -> float:
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    for _ in range(2):
        once = timed()
    slowest = torch.tensor([once], device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    times = min(50, max(5, int(_SECONDS / max(float(slowest), 1e-6))))
    return statistics.median(timed() for _ in range(times))


def _clocks(rank: int, nodes: int, each: int) -> dict[str, float]:
    """Seconds by which each other node's clock is ahead of the first one's; told by the first process of all."""
    leaders = [node * each for node in range(nodes)]
    group = dist.new_group(leaders, backend="gloo", timeout=_TIMEOUT)
    if rank not in leaders or nodes < 2:
        return {}
    now = torch.zeros(1, dtype=torch.float64)
    offsets = {}
    for other in leaders[1:]:
        for _ in range(_PINGS if rank == other else 0):
            dist.recv(now, 0, group=group)
            now[0] = time.time()
            dist.send(now, 0, group=group)
        if rank == 0:
            tries = [_ping(now, other, group) for _ in range(_PINGS)]
            offsets[str(other // each)] = min(tries)[1]  # the quickest way there and back is the most exact
    return offsets


def _ping(now: torch.Tensor, other: int, group: Any) -> tuple[float, float]:
    """Seconds there and back, and the other clock's lead."""
    sent = time.time()
    dist.send(now, other, group=group)
    dist.recv(now, other, group=group)
    received = time.time()
    return received - sent, clock_offset(sent, float(now), received)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
