"""Small submissions to Slurm, and the resources in their scripts."""

from pathlib import Path
from typing import Any

import pytest

from pretrain.config import Config

NASTY = 'it\'s a $(touch pwned) `touch pwned` "b" * 100% é;'


def submission(run_dir: str | Path = "/shared/runs/x", **cluster: Any) -> Config:
    """On two nodes of four GPUs each, three cores a process, unless `cluster` says otherwise."""
    section = {"nodes": 2, "gpus_per_node": 4, "cpus_per_process": 3} | cluster
    config = {"run": {"dir": run_dir}, "data": {"train": "data"}, "train": {"steps": 5}, "cluster": section}
    return Config.model_validate(config)


def printing_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make FOLDER/bin/python this Python, and FOLDER the working folder.

    It prints the working folder, its arguments, `--` and its environment, each ended by a NUL.
    """
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s\\0" "$PWD" "$@" --\nexec env --null\n')
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.chdir(folder)


def directives(script: str) -> list[str]:
    return [line for line in script.splitlines() if line.startswith("#SBATCH")]
