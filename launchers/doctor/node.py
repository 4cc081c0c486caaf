"""What one node of an allocation says of itself: `srun python -m launchers.doctor.node [CONFIG] [key=value ...]`."""

import os
import platform
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from launchers.doctor.commands import ask
from launchers.doctor.gpus import torch_cuda
from launchers.doctor.network import outside_address
from launchers.doctor.packages import NAMED, installed_version
from launchers.doctor.run_checks import run_checks
from launchers.doctor.subjects import machine_checks
from launchers.doctor.wire import encode
from launchers.local import gpu_count


def main(arguments: list[str]) -> None:
    """Look at this node, and print what was found for the process that started srun."""
    from pretrain.config import load_config

    config = load_config(Path(arguments[0]), arguments[1:]) if arguments else None
    findings = run_checks(machine_checks(config))
    found = {
        "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "address": outside_address(),
        "port": _free_port(),
        "gpus": gpu_count(),
        "time": time.time(),
        "facts": _facts(),
        "findings": [asdict(finding) for finding in findings],
    }
    sys.stdout.write(encode(int(os.environ.get("SLURM_PROCID", "0")), found))


def _facts() -> dict[str, Any]:
    """What should be the same on all nodes."""
    driver = ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    kinds = ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return {
        "python": platform.python_version(),
        "python's place": sys.executable,
        **{name: installed_version(name) for name in NAMED},
        "torch's CUDA": installed_version("torch") and torch_cuda(),
        "driver": driver.text.partition("\n")[0] if driver and driver.works else None,
        "GPUs": ", ".join(kinds.text.splitlines()) if kinds and kinds.works else None,
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "memory (GiB)": round(psutil.virtual_memory().total / (1 << 30)),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main(sys.argv[1:])
