"""What a run ran on, for environment.json."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

_PACKAGES = ("maskwright", "torch", "deepspeed", "transformers", "webdataset", "datasets", "mlflow", "numpy", "triton")


def describe_environment(world_size: int) -> dict[str, Any]:
    """Packages, devices and processes; no environment variables, which may hold secrets."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "git_commit": git_commit(),
        "host": platform.node(),
        "processes": world_size,
        "gpus": gpus,
        "threads": torch.get_num_threads(),
    }


def git_commit() -> str | None:
    """The commit of the working folder, if it is in a git checkout."""
    try:
        result = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
