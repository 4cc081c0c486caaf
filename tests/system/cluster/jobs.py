"""Runs on the cluster: their data and config, submission, and what they leave in the run folder."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import runs
from tests.support.datasets import make_dataset
from tests.system.cluster.cluster import Cluster

ROOT = Path(__file__).resolve().parents[3]
MASKWRIGHT = (sys.executable, "-m", "launchers.cli")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
ENVIRONMENT["PYTHONPATH"] = str(ROOT)
START_SECONDS = 240  # on a busy machine
NASTY = 'it\'s a $(touch pwned) "run" 100%A_%a'  # every quoting on the way has to hold


def write_run(folder: Path, steps: int, global_batch_size: int = 8, **sections: dict[str, Any]) -> Path:
    """Write a data set, and the config of a run on it, FOLDER/config.yaml, which it returns."""
    rng = np.random.default_rng(0)
    make_dataset(folder / "data", [rng.integers(5, 1000, size=int(n)) for n in rng.integers(20, 200, size=400)])
    config = {
        "run": {"dir": str(folder / "local"), "seed": 3},
        "data": {"train": str(folder / "data"), "seq_len": 64},
        "model": {"size": {"layers": 2, "hidden": 64, "heads": 2}},
        "train": {"steps": steps, "global_batch_size": global_batch_size, "precision": "fp32"},
        "track": {"uri": f"sqlite:///{folder}/mlflow.db"},
    }
    return runs.write_config(folder / "config.yaml", config | sections)


def train_here(config: Path, processes: int, *overrides: str) -> dict[int, float]:
    """The losses of the config, trained by so many processes on this host."""
    run = config.parent / f"local-{len(list(config.parent.iterdir()))}"
    result = runs.maskwright("train", config, "--procs", str(processes), *overrides, f"run.dir={json.dumps(str(run))}")
    assert result.returncode == 0, result.stdout + result.stderr
    return runs.losses(run)


def maskwright(cluster: Cluster, *words: str | Path, check: bool = True, **environment: str) -> str:
    """Run a command on the login node and return its standard output."""
    return cluster.run(*MASKWRIGHT, *words, cwd=ROOT, check=check, **(ENVIRONMENT | environment))


def launch(cluster: Cluster, config: Path, run: Path, *options: str | Path, **environment: str) -> str:
    """Submit a run, by default on two nodes with a process each, and return the job's id."""
    words = ("launch", "slurm", config, "--nodes", "2", "--gpus-per-node", "1", "--cpu", *options)
    printed = maskwright(cluster, *words, f"run.dir={json.dumps(str(run))}", **environment)
    return printed.split("Submitted job ")[1].split(".")[0]


def job_log(run: Path, job_id: str) -> str:
    return (run / "slurm" / f"{job_id}.log").read_text()


def completed(cluster: Cluster, run: Path, job_id: str, seconds: float = START_SECONDS) -> str:
    """Wait until a job has completed, and return its log."""
    state, log = cluster.wait(job_id, seconds), job_log(run, job_id)
    assert state == "COMPLETED", log
    return log


def has_trained(run: Path, steps: int) -> Callable[[], bool]:
    return lambda: (run / "journal.jsonl").exists() and len(runs.losses(run)) >= steps


def ranks(cluster: Cluster) -> list[str]:
    """Process ids of training processes."""
    return cluster.run("pgrep", "--full", "pretrain.train", check=False).split()
