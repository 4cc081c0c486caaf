"""A run on several hosts: what is to be started where."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data_prep.remote import is_secret

FORWARDED = (
    *("MLFLOW_", "NCCL_", "GLOO_", "TORCH", "CUDA_", "TRITON_", "DS_", "OMP_", "UCX_"),
    *("HF_", "AWS_", "GOOGLE_", "AZURE_", "FSSPEC_", "WANDB_", "MASKWRIGHT_"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
"""Beginnings of the names of environment variables that a run may depend on, and that mean the same on every host."""
_OF_ONE_HOST = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH")
_EXPORTED = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
"""Beginnings of what DeepSpeed's runner (0.19) writes on command lines for pdsh and mpirun."""


@dataclass(frozen=True)
class HostsJob:
    """One run on `hosts`, in rank order. Paths are absolute and the same on all hosts."""

    config: Path
    overrides: list[str]
    run_dir: Path
    hosts: list[str]
    processes: int
    """of each host"""
    cpu: bool
    working_dir: Path
    python: Path
    python_path: str
    """PYTHONPATH of this machine, perhaps empty"""


def forwarded(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of this machine that the hosts' processes get, secrets among them."""
    names = [name for name in environment if name.startswith(FORWARDED) and name not in _OF_ONE_HOST]
    return {name: environment[name] for name in names}


def exposed(environment: Mapping[str, str]) -> list[str]:
    """The variables with secrets that DeepSpeed's runner would show to everybody on the hosts, in `ps`."""
    return [name for name, value in environment.items() if name.startswith(_EXPORTED) and is_secret(name, value)]
