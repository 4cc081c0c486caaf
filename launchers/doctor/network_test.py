"""Network and speed test of a Slurm allocation: connections, bandwidth, and slow nodes.

`srun --label python -m launchers.doctor.network_test MASTER PORT PEER DEVICE` runs one process per GPU, or per node.
MASTER is the first node and PEER the last one. Rank 0 prints the measurements of all processes.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from data_prep.common.errors import UserError, one_line
from data_prep.common.processes import module_command
from launchers.doctor.check_runner import presentable
from launchers.doctor.node_report import compare_nodes, names, print_value, values_by_task
from launchers.local import Finding, judge
from launchers.slurm import allocated_hosts, run_on_hosts
from pretrain.distributed import all_gather_json, interface_to, open_store

_MOST_ROUNDS = 31  # of pairs: a second or two each
_TIMEOUT = timedelta(seconds=120)
_NODE_SECONDS, _MEASURING_SECONDS = 180.0, 600.0
_LEAVE_OUT = "leave it out (--exclude with sbatch), and ask the administrator to check it"
_WARM_UP, _CALLS = 2, 10
_RATIOS = {"matrix products": (0.9, 0.7), "bandwidth": (0.75, 0.5)}
"""A node is slow if it is below this share of the median, with and without GPUs."""


def examine_cluster(arguments: Sequence[str]) -> tuple[list[Finding], dict[str, Any]]:
    """Check the nodes of this allocation, first each alone and then with each other. Returns findings and measurements.

    If `arguments` holds CONFIG and overrides, each node also checks the requirements of that run.

    Raises:
        UserError: outside an allocation.
    """
    if "SLURM_JOB_ID" not in os.environ:
        raise UserError("--cluster needs the allocation of a Slurm job: give --nodes N to get one")
    hosts = allocated_hosts()
    if not hosts:
        raise UserError(f"scontrol does not name the nodes of job {os.environ['SLURM_JOB_ID']}: is it over?")
    reports, problem = _run(hosts, 1, None, "launchers.doctor.node_report", arguments, _NODE_SECONDS)
    nodes = {report["host"]: report for _, report in sorted(reports.items())}
    missing = [host for host in hosts if host not in nodes]
    value = f"{len(hosts)} nodes: {names(hosts)}"
    value = f"{names(missing)} of {len(hosts)} nodes gave none {problem}" if missing else value
    findings = [judge("answers", value, (bool(missing), "fail", _LEAVE_OUT))]
    measured, figures = _measure(nodes) if nodes else ([], {})
    findings += [*compare_nodes(nodes), *measured] if nodes else []
    figures["nodes"] = {host: report["facts"] for host, report in nodes.items()}
    return [presentable(finding, finding.group or "cluster") for finding in findings], figures


def _run(
    hosts: Sequence[str], each: int, cores: int | None, module: str, arguments: Sequence[str], seconds: float
) -> tuple[dict[int, Any], str]:
    """Run a module on these hosts with `each` processes. Returns the tasks' values and the last error message."""
    print(f"{module.rpartition('.')[2]}: {len(hosts)} nodes, {each} processes on each ...", file=sys.stderr, flush=True)
    command = module_command(module, *arguments)
    code, output, errors = run_on_hosts(command, hosts, seconds, each, cores, ["--label"])
    last = (errors.strip().splitlines() or ["srun gave no reason"])[-1]
    reason = one_line(last, 200) if code is not None else f"not finished after {seconds:g} s"
    return values_by_task(output), "" if code == 0 else f"({reason})"


def _measure(nodes: Mapping[str, dict[str, Any]]) -> tuple[list[Finding], dict[str, Any]]:
    """Measure the nodes that answered. They are in Slurm's order, so that the first one has rank 0."""
    hosts = list(nodes)
    each = max(1, min(node["gpus"] for node in nodes.values()))
    cores = max(1, min(node["cores"] for node in nodes.values()) // each)
    on_gpus = all(node["gpus"] and node["facts"]["torch's CUDA"] for node in nodes.values())
    words = [hosts[0], str(nodes[hosts[0]]["port"]), hosts[-1], "cuda" if on_gpus else "cpu"]
    printed, problem = _run(hosts, each, cores, __name__, words, _MEASURING_SECONDS)
    figures = printed.get(0, {})
    if "ranks" not in figures:
        absent = sorted({host for host in hosts if host not in {one["host"] for one in printed.values()}})
        value = f"{names(absent) or 'no node'} did not reach {hosts[0]} {problem}"
        advice = "name the network by GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, or leave out these nodes"
        return [Finding("exchange", "fail", value, advice)], {}
    return judge_figures(figures, on_gpus), figures


def judge_figures(figures: Mapping[str, Any], on_gpus: bool) -> list[Finding]:
    """Judge the measurements. A node's bandwidth is its best one, because a bad link is slow with all nodes."""
    rates = {f"{one['host']}:{one['local']}": one["tflops"] for one in figures["ranks"]}
    findings = [judge_rates("matrix products", "TFLOP/s", rates, _RATIOS["matrix products"][not on_gpus])]
    if total := figures["all"]:
        value = f"{total['GB/s']:,.3g} GB/s over {len(figures['ranks'])} processes"
        findings.append(Finding("all-reduce", "ok", value))
    best: dict[str, float] = {}
    for pair in sorted(figures["pairs"], key=lambda pair: pair["GB/s"]):
        best |= dict.fromkeys(pair["nodes"], pair["GB/s"])  # the last one stays in place
    if best:
        findings.append(judge_rates("bandwidth", "GB/s", best, _RATIOS["bandwidth"][not on_gpus]))
    return findings


def judge_rates(name: str, unit: str, rates: Mapping[str, float], ratio: float) -> Finding:
    """Warn about nodes below `ratio` times the median. Of two rates, the better one counts as the median."""
    median = statistics.median_high(rates.values())
    slow = names([f"{one} has {rate:,.3g}" for one, rate in rates.items() if rate < ratio * median])
    return judge(name, f"median {median:,.3g} {unit}{slow and f'; {slow}'}", (bool(slow), "warn", _LEAVE_OUT))


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """All pairs of nodes, in rounds with each node at most once (circle method)."""
    players: list[int | None] = [*range(nodes), *([None] if nodes % 2 else [])]
    found = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        both = zip(players[:half], reversed(players[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in both if a is not None and b is not None])
        players = [players[0], players[-1], *players[1:-1]]
    return found


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
        hosts = [one["host"] for one in ranks[:: world // nodes]]
        pairs = [{"nodes": [hosts[a], hosts[b]], "GB/s": rate} for one in ranks for a, b, rate in one.pop("pairs")]
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
    found = []
    for turn in rounds(nodes)[:_MOST_ROUNDS]:
        dist.barrier()
        for pair in turn:
            if node in pair:
                ranks = [one * each + local for one in pair for local in range(each)]
                group = dist.new_group(ranks, timeout=_TIMEOUT, use_local_synchronization=True)
                rate = _all_reduce(device, group)
                dist.destroy_process_group(group)
                found += [(*pair, rate)] if dist.get_rank() == ranks[0] else []
    return found


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
