"""The nodes of a Slurm allocation beside each other: each looks at itself, then all are measured together."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from data_prep.errors import UserError
from launchers.doctor import judge_cluster as judge
from launchers.doctor.commands import one_line
from launchers.doctor.finding import Finding, presentable
from launchers.doctor.wire import decode
from launchers.slurm import client

_NODE_SECONDS = 180.0
_EXCHANGE_SECONDS = 600.0


class Report(NamedTuple):
    """What was found, and the figures as JSON values."""

    findings: list[Finding]
    measured: dict[str, Any]


def allocate(nodes: int, gpus_per_node: int | None, arguments: Sequence[str]) -> int:
    """Run `maskwright doctor --cluster` in an allocation of its own, and return its exit code.

    Raises:
        UserError: where there is no salloc.
    """
    options = ["--job-name=maskwright-doctor"]
    if gpus_per_node:
        options += [f"--gres=gpu:{gpus_per_node}", f"--ntasks-per-node={gpus_per_node}"]
    command = [sys.executable, "-m", "launchers.cli", "doctor", "--cluster", *arguments]
    return client.allocate(nodes, options, command)


def examine_cluster(arguments: Sequence[str]) -> Report:
    """Look at the nodes of the allocation that this process runs in.

    Args:
        arguments: CONFIG and overrides, if the nodes are to look at what a run needs.

    Raises:
        UserError: outside an allocation.
    """
    environment = os.environ
    if "SLURM_JOB_ID" not in environment:
        raise UserError("--cluster looks at the allocation of a Slurm job, and this is none: give --nodes N to get one")
    hosts = client.host_names(environment.get("SLURM_JOB_NODELIST", ""))
    if not hosts:
        raise UserError(f"scontrol does not name the nodes of job {environment['SLURM_JOB_ID']}: is it over?")
    _say(f"{len(hosts)} nodes look at themselves")
    answers, problem = _srun(hosts, 1, "launchers.doctor.node", arguments, _NODE_SECONDS)
    nodes = {answer["host"]: answer for answer in answers.values()}  # in Slurm's order: the first has rank 0
    findings = [judge.judge_answers(hosts, list(nodes), problem)]
    if not nodes:
        return Report(findings, {})
    findings += judge.merge_findings({h: [Finding(**one) for one in node["findings"]] for h, node in nodes.items()})
    findings += judge.judge_likeness({host: node["facts"] for host, node in nodes.items()})
    more, measured = _exchange(nodes)
    findings = [presentable(finding) for finding in [*findings, *more]]
    return Report(findings, {"nodes": {h: node["facts"] for h, node in nodes.items()}, **measured})


def _exchange(nodes: dict[str, dict[str, Any]]) -> tuple[list[Finding], dict[str, Any]]:
    """Measure the nodes together that have answered."""
    hosts = list(nodes)
    each = max(1, min(node["gpus"] for node in nodes.values()))
    first, last = nodes[hosts[0]], nodes[hosts[-1]]
    master = str(first["address"] or hosts[0])
    on_gpus = all(node["gpus"] and node["facts"]["torch's CUDA"] for node in nodes.values())
    words = [master, str(first["port"]), str(last["address"] or hosts[-1]), "cuda" if on_gpus else "cpu"]
    _say(f"{len(hosts)} nodes are measured together, {each} processes on each")
    ranks, problem = _srun(hosts, each, "launchers.doctor.exchange", words, _EXCHANGE_SECONDS)
    if len(ranks) < each * len(hosts):
        silent = sorted({hosts[rank // each] for rank in range(each * len(hosts)) if rank not in ranks})
        value = f"no result of {', '.join(silent)}; {problem or 'srun ended without a word'}"
        advice = (
            "name the network by GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, or leave out the nodes that gave no result"
        )
        return [Finding("exchange", "fail", value, advice, judge.GROUP)], {}
    return judge_measured(ranks)


def judge_measured(ranks: Mapping[int, dict[str, Any]]) -> tuple[list[Finding], dict[str, Any]]:
    """The findings and the figures of what all processes have measured, by rank."""
    hosts = {one["node"]: one["host"] for one in ranks.values()}
    backend, each = ranks[0]["backend"], len(ranks) // len(hosts)
    names = {rank: hosts[one["node"]] + (f" gpu {one['local']}" if each > 1 else "") for rank, one in ranks.items()}
    rates = {names[rank]: one["gemm"] for rank, one in ranks.items()}
    pairs = {
        (hosts[first], hosts[second]): figures for one in ranks.values() for first, second, figures in one["pairs"]
    }
    offsets = {hosts[int(node)]: offset for node, offset in ranks[0]["clocks"].items()}
    findings = [judge.judge_rates(rates, backend)]
    if ranks[0]["all"]:
        findings.append(judge.judge_all(ranks[0]["all"], len(ranks)))
    if pairs:
        findings += judge.judge_bandwidth({pair: figures["GB/s"] for pair, figures in pairs.items()}, backend)
        findings += judge.judge_latency({pair: figures["us"] for pair, figures in pairs.items()})
        findings.append(judge.judge_clocks(offsets))
    measured = {
        "backend": backend,
        "gemm_tflops": rates,
        "all": ranks[0]["all"],
        "pairs": [{"nodes": list(pair), **figures} for pair, figures in pairs.items()],
        "clock_seconds": offsets,
    }
    return findings, measured


def least_cores(counts: str) -> int:
    """The fewest cores that a node of the job grants, of Slurm's `4(x2),8`; 1 where it does not tell."""
    return min((int(count) for count in re.findall(r"(?:^|,)(\d+)", counts)), default=1)


def _say(words: str) -> None:
    print(f"{words} ...", file=sys.stderr, flush=True)


def _srun(
    hosts: Sequence[str], each: int, module: str, arguments: Sequence[str], seconds: float
) -> tuple[dict[int, Any], str]:
    """Run a module in `each` processes on every host; what they print by rank, and srun's complaints on one line."""
    cores = least_cores(os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    step = client.srun([sys.executable, "-m", module, *arguments], hosts, each, max(1, cores // each))
    code, output, errors = client.step_output(step, seconds)
    complaints = errors[-400:] if code else "" if code == 0 else f"not over after {seconds:g} s"
    return decode(output), one_line(complaints)
