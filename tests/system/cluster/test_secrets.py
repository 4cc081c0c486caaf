"""Row 29 on Slurm: secrets in the environment of `maskwright launch slurm` reach only the ranks."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.support.datasets import make_dataset
from tests.support.secrets import SECRETS, CommandLines, leaks
from tests.system.cluster.cluster import Cluster

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_a_job_tells_no_secret(cluster: Cluster, tmp_path: Path) -> None:
    """Not its script, its description and its log, and nothing that the run leaves."""
    make_dataset(tmp_path / "data", [np.random.default_rng(0).integers(5, 1000, size=100) for _ in range(100)])
    config = {
        "run": {"dir": str(tmp_path / "run")},
        "data": {"train": str(tmp_path / "data"), "seq_len": 64},
        "model": {"size": {"layers": 1, "hidden": 64, "heads": 2}},
        "train": {"steps": 5, "global_batch_size": 4, "precision": "fp32"},
        "track": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "launchers.cli", "launch", "slurm", str(tmp_path / "config.yaml")]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"OMP_NUM_THREADS": "1", "PATH": path, "PYTHONPATH": str(ROOT), **SECRETS}
    with CommandLines() as seen:
        printed = cluster.run(*command, "--nodes", "2", "--gpus-per-node", "1", "--cpu", cwd=ROOT, **environment)
        job_id = printed.split("Submitted job ")[1].split(".")[0]
        state = cluster.wait(job_id, 240)
    described = cluster.run("scontrol", "show", "job", "--details", job_id)
    (tmp_path / "printed").write_text(printed + described)
    assert state == "COMPLETED"
    assert len(seen.knowing) >= 2
    assert not seen.leaked
    assert not leaks(tmp_path)
