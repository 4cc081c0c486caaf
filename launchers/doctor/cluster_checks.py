"""Checks of the nodes of a Slurm allocation: each alone, and with each other. `network_test` measures."""

import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from data_prep.common.errors import UserError, one_line
from data_prep.common.processes import module_command
from launchers.doctor.check_runner import presentable
from launchers.doctor.node_report import judge_likeness, merge_findings, names, values_by_task
from launchers.local import Finding, judge
from launchers.slurm import allocated_hosts, run_timed_step, srun

_NODE_SECONDS, _MEASURING_SECONDS = 180.0, 600.0
_LEAVE_OUT = "leave it out (--exclude with sbatch), and ask the administrator to check it"
# A node is slow if it is below this share of the median, with and without GPUs.
_RATIOS = {"matrix products": (0.9, 0.7), "bandwidth": (0.75, 0.5)}


def examine_cluster(arguments: Sequence[str]) -> tuple[list[Finding], dict[str, Any]]:
    """Check the nodes of this allocation, first each alone and then with each other. Returns findings and measurements.

    If `arguments` holds CONFIG and overrides, each node also checks the requirements of that run. Raises UserError
    outside an allocation.
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
    facts = {host: report["facts"] for host, report in nodes.items()}
    measured, figures = _measure(nodes) if nodes else ([], {})
    if nodes:
        by_host = {host: [Finding(**finding) for finding in report["findings"]] for host, report in nodes.items()}
        findings += [*merge_findings(by_host), *judge_likeness(facts), *measured]
    figures["nodes"] = facts
    return [presentable(finding, finding.group or "cluster") for finding in findings], figures


def _run(
    hosts: Sequence[str], each: int, cores: int | None, module: str, arguments: Sequence[str], seconds: float
) -> tuple[dict[int, Any], str]:
    """Run a module on these hosts with `each` processes. Returns the tasks' values and the last error message."""
    print(f"{module.rpartition('.')[2]}: {len(hosts)} nodes, {each} processes on each ...", file=sys.stderr, flush=True)
    step = srun(module_command(module, *arguments), hosts, each, cores, ["--label"])
    code, output, errors = run_timed_step(step, seconds)
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
    printed, problem = _run(hosts, each, cores, "launchers.doctor.network_test", words, _MEASURING_SECONDS)
    figures = printed.get(0, {})
    if "ranks" not in figures:
        absent = sorted({host for host in hosts if host not in {result["host"] for result in printed.values()}})
        value = f"{names(absent) or 'no node'} did not reach {hosts[0]} {problem}"
        advice = "name the network by GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, or leave out these nodes"
        return [Finding("exchange", "fail", value, advice)], {}
    return judge_figures(figures, on_gpus), figures


def judge_figures(figures: Mapping[str, Any], on_gpus: bool) -> list[Finding]:
    """Judge the measurements. A node's bandwidth is its best one, because a bad link is slow with all nodes."""
    rates = {f"{rank['host']}:{rank['local']}": rank["tflops"] for rank in figures["ranks"]}
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
    slow = names([f"{node} has {rate:,.3g}" for node, rate in rates.items() if rate < ratio * median])
    return judge(name, f"median {median:,.3g} {unit}{slow and f'; {slow}'}", (bool(slow), "warn", _LEAVE_OUT))
