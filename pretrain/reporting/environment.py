"""Hosts, versions and command of a run, for environment.json.

Slurm's job variables are the only environment variables in it, as others may hold secrets.
"""

import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from data_prep.common.errors import UserError
from data_prep.common.files import text_or_none, write_json
from data_prep.common.packages import installed_version
from data_prep.common.processes import ask_program
from data_prep.common.reading import read_json, typed
from data_prep.common.urls import redact
from pretrain.distributed import all_gather_json, run_on_rank_zero
from pretrain.run import COMMAND_VARIABLE

_PACKAGES = ("maskwright", "torch", "deepspeed", "transformers", "webdataset", "datasets", "mlflow", "numpy", "triton")
_SLURM = (
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_NODELIST",
    "SLURM_RESTART_COUNT",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
)
_EARLIER_STARTS = 20


def record_environment(path: Path, steps_done: int, more: dict[str, Any]) -> dict[str, Any]:
    """Write environment.json: packages, command, devices and topology of all processes, and `more`. A collective.

    Returns its values for this start, as JSON values.
    """
    everyone = all_gather_json(describe_host(first=os.environ.get("LOCAL_RANK", "0") == "0"))
    environment = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "packages": {name: installed_version(name) for name in _PACKAGES},
        "git_commit": _output("git", "rev-parse", "HEAD"),  # of the working directory
        "git_changes": bool(_output("git", "status", "--porcelain")),
        "command": redact(os.environ.get(COMMAND_VARIABLE) or shlex.join(sys.orig_argv)),
        "slurm": {name: os.environ[name] for name in _SLURM if name in os.environ},
        "processes": len(everyone),
        "threads": torch.get_num_threads(),
        "backend": dist.get_backend(),
        "cuda": _cuda(),
        "hosts": by_host(everyone),
        **more,
    }
    run_on_rank_zero(lambda: write_environment(path, environment, steps_done))
    return environment


def describe_host(first: bool) -> dict[str, Any]:
    """Describe the machine of this process. Only the `first` process of a host adds the GPUs and their topology."""
    found: dict[str, Any] = {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
    }
    if first and torch.cuda.is_available():
        properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        found["gpus"] = [{"name": p.name, "memory_gb": round(p.total_memory / 1e9, 1)} for p in properties]
        drivers = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        found["driver"] = drivers.splitlines()[0] if drivers else None
        found["topology"] = _output("nvidia-smi", "topo", "-m")
    return found


def by_host(everyone: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the descriptions of all ranks into one entry for each host, with its ranks."""
    hosts: dict[str, dict[str, Any]] = {}
    for rank, found in enumerate(everyone):
        host = hosts.setdefault(found["host"], {"host": found["host"], "ranks": []})
        host["ranks"].append(rank)
        host.update(found)
    return list(hosts.values())


def write_environment(path: Path, now: dict[str, Any], steps_done: int) -> None:
    """Write environment.json: this start of the run, and the earlier ones in `earlier_starts`, the newest first."""
    try:
        before = read_json(path, dict[str, Any])
        earlier = [before, *typed(list[dict[str, Any]], before.pop("earlier_starts", []))][:_EARLIER_STARTS]
    except (UserError, ValueError):  # missing or damaged: training starts anyway
        earlier = []
    write_json(path, {"after_step": steps_done, **now, "earlier_starts": earlier})


def _cuda() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {}
    nccl = torch.cuda.nccl.version() if dist.is_nccl_available() else ()
    return {"runtime": torch.version.cuda, "nccl": ".".join(map(str, nccl)), "cudnn": torch.backends.cudnn.version()}


def _processor() -> str:
    text = text_or_none(Path("/proc/cpuinfo"))
    if text is None:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, platform.machine())


def _output(*command: str) -> str | None:
    """The output of a program; None if it is not installed, fails or does not answer."""
    answer = ask_program(*command)
    return answer.text if answer and answer.works else None
