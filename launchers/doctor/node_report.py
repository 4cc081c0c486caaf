"""Reports on the nodes of an allocation, and their comparison.

`srun --label python -m launchers.doctor.node_report [CONFIG] [KEY=VALUE ...]` prints the reports.
"""

import json
import os
import platform
import re
import socket
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from data_prep.common.reading import parse_json
from launchers.doctor.check_list import checks_of_machine
from launchers.doctor.check_runner import run_checks
from launchers.doctor.gpu_checks import list_gpus
from launchers.doctor.package_checks import NAMED, installed_version
from launchers.local import Finding, gpu_count
from pretrain.distributed import Cores

_MARK = "maskwright-doctor"
_SHOWN = 8  # names on a line


def main(arguments: list[str]) -> None:
    """Check this node and print its report."""
    from pretrain.config_files import load_config

    config = load_config(Path(arguments[0]), arguments[1:]) if arguments else None
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    print_value(
        {
            "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
            "port": port,
            "gpus": gpu_count(),
            "cores": Cores.usable().number,
            "facts": _facts(),
            "findings": [asdict(finding) for finding in run_checks(checks_of_machine(config))],
        }
    )


def _facts() -> dict[str, Any]:
    """Facts that should be the same on all nodes."""
    import torch

    gpus = list_gpus()
    listed = gpus if isinstance(gpus, list) else []
    return {
        "python": platform.python_version(),
        "python's place": sys.executable,
        **{name: installed_version(name) for name in NAMED},
        "torch's CUDA": torch.version.cuda,
        "driver": listed[0].driver if listed else None,
        "GPUs": ", ".join(gpu.name for gpu in listed) or None,
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "memory (GiB)": round(psutil.virtual_memory().total / (1 << 30)),
    }


def print_value(value: Any) -> None:
    """Print a JSON value for values_by_task. Lines are short, because srun cuts them at 1,024 bytes."""
    sys.stdout.write(f"{_MARK}\n{json.dumps(value, indent=0, ensure_ascii=False)}\n{_MARK} end\n")
    sys.stdout.flush()


def values_by_task(output: str) -> dict[int, Any]:
    """The last value that each task of `srun --label` printed. Other output is ignored."""
    lines: dict[int, list[str]] = defaultdict(list)
    for line in output.splitlines():
        if match := re.match(r" *([0-9]{1,9}): (.*)", line):
            lines[int(match[1])].append(match[2])
    values = {}
    for task, printed in lines.items():
        for text in re.findall(rf"^{_MARK}\n(.*?)\n{_MARK} end$", "\n".join(printed), re.MULTILINE | re.DOTALL):
            try:
                values[task] = parse_json(text, Any, nan=True)
            except ValueError:
                continue
    return values


def merge_findings(by_host: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """One finding for each problem, with the names of its nodes, and one for all passed checks."""
    problems: dict[tuple[str, str, str], list[tuple[str, Finding]]] = defaultdict(list)
    fine = 0
    for host, findings in by_host.items():
        for finding in findings:
            if finding.status in ("warn", "fail"):
                problems[finding.group, finding.name, finding.status].append((host, finding))
            fine += finding.status == "ok"
    merged = [
        Finding(first.name, first.status, f"{names([host for host, _ in those])}: {first.value}", first.advice, group)
        for (group, *_), those in problems.items()
        for first in [those[0][1]]
    ]
    value = f"{fine} checks on {len(by_host)} nodes are fine"
    return [*merged, Finding("checks", "ok", value)]


def judge_likeness(facts: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """A finding for each fact that differs between nodes: package versions fail, others are a warning."""
    findings = []
    for name in next(iter(facts.values()), {}):
        hosts: dict[Any, list[str]] = defaultdict(list)
        for host, those in facts.items():
            hosts[those.get(name)].append(host)
        if len(hosts) > 1:
            by_number = sorted(hosts.items(), key=lambda item: -len(item[1]))
            value = "; ".join(f"{'none' if v is None else v} on {names(those)}" for v, those in by_number)
            fails = name in (*NAMED, "python")
            advice = (
                "use one environment on shared storage for all nodes" if fails else "each step waits for the slowest"
            )
            findings.append(Finding(f"same {name}", "fail" if fails else "warn", value, advice))
    return findings or [Finding("sameness", "ok", "all nodes have the same versions, GPUs, cores and memory", "")]


def names(hosts: Sequence[str]) -> str:
    """Join names on one line. Of many names, only the first ones are listed."""
    more = f" and {len(hosts) - _SHOWN} more" if len(hosts) > _SHOWN else ""
    return ", ".join(hosts[:_SHOWN]) + more


if __name__ == "__main__":
    main(sys.argv[1:])
