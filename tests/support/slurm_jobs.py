"""Small submissions to Slurm, and the resources in their scripts."""

from pathlib import Path
from typing import Any

from launchers.slurm.submission import Submission
from pretrain.config import Config

NASTY = 'it\'s a $(touch pwned) `touch pwned` "b" * 100% é;'


def submission(run_dir: str | Path = "/shared/runs/x", **cluster: Any) -> Submission:
    """On two nodes of four GPUs each, three cores a process, unless `cluster` says otherwise."""
    section = {"nodes": 2, "gpus_per_node": 4, "cpus_per_process": 3} | cluster
    config = {"run": {"dir": run_dir}, "data": {"train": "data"}, "train": {"steps": 5}, "cluster": section}
    return Submission(Config.model_validate(config), Path("/shared"), Path("/shared/venv/bin/python"))


def directives(script: str) -> list[str]:
    return [line for line in script.splitlines() if line.startswith("#SBATCH")]
