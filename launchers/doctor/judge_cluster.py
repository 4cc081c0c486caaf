"""What to think of the nodes of an allocation, beside each other: pure functions of what they have said."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from launchers.doctor.finding import Finding
from launchers.doctor.packages import NAMED
from launchers.doctor.pairs import bad_pairs, by_node, outliers

GROUP = "cluster"
GEMM_RATIOS = {"nccl": 0.9, "gloo": 0.7}  # GPUs of one kind are within some per cent of each other
BANDWIDTH_RATIOS = {"nccl": 0.75, "gloo": 0.5}
LATENCY_RATIO = 3.0
SKEW_SECONDS = 1.0
_SHOWN = 8  # names in a line
_SLOW = "every step waits for it: leave it out (--exclude with sbatch) and have it looked at"


def judge_answers(expected: Sequence[str], answered: Sequence[str], problem: str) -> Finding:
    """Whether every node of the allocation has answered; `problem` is what srun said."""
    missing = [host for host in expected if host not in answered]
    if missing:
        words = f"; srun: {problem}" if problem else ""
        advice = "leave it out (--exclude with sbatch), and have it looked at"
        return _finding("answers", "fail", f"{_names(missing)} of {len(expected)} nodes gave none{words}", advice)
    return _finding("answers", "ok", f"{len(expected)} nodes: {_names(expected)}")


def merge_findings(by_host: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """What nodes found out about themselves: a line for each that is no `ok`, with its nodes; and one for the rest."""
    lines: dict[tuple[str, str, str], list[tuple[str, Finding]]] = {}
    fine = 0
    for host, findings in by_host.items():
        for finding in findings:
            if finding.status in ("warn", "fail"):
                lines.setdefault((finding.group, finding.name, finding.status), []).append((host, finding))
            fine += finding.status == "ok"
    found = []
    for those in lines.values():
        first = those[0][1]
        value = f"{_names([host for host, _ in those])}: {first.value}"
        found.append(Finding(first.name, first.status, value, first.advice, first.group))
    return [*found, _finding("checks", "ok", f"{fine} of the {len(by_host)} nodes' own checks are fine")]


def judge_likeness(facts: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """A line for what differs between nodes: packages fail, the rest is a warning."""
    found = []
    for name in next(iter(facts.values()), {}):
        values: dict[Any, list[str]] = {}
        for host, those in facts.items():
            values.setdefault(those.get(name), []).append(host)
        if len(values) > 1:
            rarest_last = sorted(values.items(), key=lambda one: -len(one[1]))
            value = "; ".join(f"{'none' if v is None else v} on {_names(hosts)}" for v, hosts in rarest_last)
            status = "fail" if name in (*NAMED, "python") else "warn"
            advice = (
                "one environment on shared storage for all nodes" if status == "fail" else "steps go at the slowest"
            )
            found.append(_finding(f"same {name}", status, value, advice))
    return found or [_finding("sameness", "ok", "versions, drivers, GPUs, cores and memory are those of one another")]


def judge_rates(rates: Mapping[str, float], backend: str) -> Finding:
    """TFLOP/s of matrix products by GPU, or by node."""
    slow = outliers(rates, GEMM_RATIOS[backend])
    value = f"median {statistics.median(rates.values()):,.3g} TFLOP/s {'bf16' if backend == 'nccl' else 'fp32'}"
    if slow:
        return _finding("matrix products", "warn", f"{value}; {_shares(slow)}", _SLOW)
    lowest = min(rates, key=lambda name: rates[name])
    return _finding("matrix products", "ok", f"{value}, lowest {rates[lowest]:,.3g} ({lowest})")


def judge_bandwidth(pairs: Mapping[tuple[str, str], float], backend: str) -> list[Finding]:
    """GB/s of all-reduces by pair of nodes."""
    return _judge_pairs("bandwidth", pairs, "GB/s", BANDWIDTH_RATIOS[backend], True)


def judge_latency(pairs: Mapping[tuple[str, str], float]) -> list[Finding]:
    """Microseconds of the smallest all-reduce by pair of nodes."""
    return _judge_pairs("latency", pairs, "us", LATENCY_RATIO, False)


def _judge_pairs(
    name: str, pairs: Mapping[tuple[str, str], float], unit: str, ratio: float, higher_is_better: bool
) -> list[Finding]:
    value = f"median {statistics.median(pairs.values()):,.3g} {unit} over {len(pairs)} pairs of nodes"
    found = []
    if slow := outliers(by_node(pairs, higher_is_better), ratio, higher_is_better):
        found.append(_finding(name, "warn", f"{value}; {_shares(slow)} with every partner", _SLOW))
    blamed = {
        pair: share for pair, share in bad_pairs(pairs, ratio, higher_is_better).items() if not slow.keys() & set(pair)
    }
    if blamed:
        advice = "the nodes are fine with others: have the way between the two (cables, switches) looked at"
        shares = _shares({" - ".join(pair): share for pair, share in blamed.items()})
        found.append(_finding(f"{name} of pairs", "warn", f"{value}; {shares}", advice))
    return found or [_finding(name, "ok", value)]


def judge_all(measured: Mapping[str, float], processes: int) -> Finding:
    """The all-reduce of all processes, by its slowest view."""
    value = f"{measured['GB/s']:,.3g} GB/s, {measured['us']:,.0f} us over {processes} processes"
    return _finding("all-reduce", "ok", value)


def judge_clocks(offsets: Mapping[str, float]) -> Finding:
    """Seconds by which nodes' clocks are ahead of the first one's."""
    off = {host: offset for host, offset in offsets.items() if abs(offset) > SKEW_SECONDS}
    if off:
        value = ", ".join(f"{host} {offset:+.1f} s" for host, offset in list(off.items())[:_SHOWN])
        return _finding("clocks", "warn", f"{value} from the first node's", "logs mislead: switch on NTP on all nodes")
    most = max((abs(offset) for offset in offsets.values()), default=0.0)
    return _finding("clocks", "ok", f"within {1000 * most:,.1f} ms of the first node's")


def _finding(name: str, status: Any, value: str, advice: str = "") -> Finding:
    return Finding(name, status, value, advice, GROUP)


def _names(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - _SHOWN} more" if len(hosts) > _SHOWN else ""
    return ", ".join(hosts[:_SHOWN]) + more


def _shares(slow: Mapping[str, float]) -> str:
    gravest_first = sorted(slow.items(), key=lambda one: -abs(math.log(one[1])))
    return _names([f"{name} has {share:.2g} times the others'" for name, share in gravest_first])
