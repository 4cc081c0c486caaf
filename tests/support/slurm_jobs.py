"""Small submissions to Slurm, and programs in place of Slurm's and of Python."""

from pathlib import Path
from typing import Any

import pytest

from pretrain.config import Config

NASTY = 'it\'s a $(touch pwned) `touch pwned` "b" * 100%A_%a é;'


def submission(run_dir: str | Path = "/shared/runs/x", **cluster: Any) -> Config:
    """On two nodes of four GPUs each, three cores a process, unless `cluster` says otherwise."""
    section = {"nodes": 2, "gpus_per_node": 4, "cpus_per_process": 3} | cluster
    config = {"run": {"dir": run_dir}, "data": {"train": "data"}, "train": {"steps": 5}, "cluster": section}
    return Config.model_validate(config)


def program(folder: Path, name: str, script: str) -> Path:
    """A program for the PATH, in sh. Makes the folder if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return folder / name


def printing_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make FOLDER/bin/python this Python, and FOLDER the working folder.

    It prints the working folder, its arguments, `--` and its environment, each ended by a NUL.
    """
    python = program(folder / "bin", "python", 'printf "%s\\0" "$PWD" "$@" --\nexec env --null')
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.chdir(folder)


def directives(script: str) -> list[str]:
    return [line for line in script.splitlines() if line.startswith("#SBATCH")]
