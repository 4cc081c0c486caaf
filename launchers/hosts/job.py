"""A run on several hosts: what is to be started where."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FORWARDED = (
    *("MLFLOW_", "NCCL_", "GLOO_", "TORCH", "CUDA_", "TRITON_", "DS_", "OMP_", "UCX_"),
    *("HF_", "AWS_", "GOOGLE_", "AZURE_", "FSSPEC_", "WANDB_", "MASKWRIGHT_"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
"""Beginnings of the names of environment variables that a run may depend on, and that mean the same on every host."""
_OF_ONE_HOST = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH")


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
