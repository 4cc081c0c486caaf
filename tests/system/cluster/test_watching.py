"""`maskwright status` and `stop` of jobs in the queue of a real Slurm cluster."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.support.datasets import make_dataset
from tests.system.cluster.cluster import Cluster

ROOT = Path(__file__).resolve().parents[3]
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
START_SECONDS = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("watching")
    rng = np.random.default_rng(0)
    make_dataset(path / "data", [rng.integers(5, 1000, size=60) for _ in range(200)])
    config = {
        "run": {"dir": str(path / "runs" / "first")},
        "data": {"train": str(path / "data"), "seq_len": 64},
        "model": {"size": {"layers": 2, "hidden": 64, "heads": 2}},
        "train": {"steps": 100_000, "global_batch_size": 8, "precision": "fp32"},
        "track": {"uri": f"sqlite:///{path}/mlflow.db"},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return path


def call(cluster: Cluster, *words: str | Path, check: bool = True) -> str:
    command = [sys.executable, "-m", "launchers.cli", *words]
    return cluster.run(*command, cwd=ROOT, check=check, OMP_NUM_THREADS="1", PATH=PATH, PYTHONPATH=str(ROOT))


def launch(cluster: Cluster, folder: Path, run: str) -> str:
    words = ["launch", "slurm", folder / "config.yaml", "--nodes", "2", "--gpus-per-node", "1", "--cpu"]
    output = call(cluster, *words, f"run.dir={folder / 'runs' / run}")
    return output.split("Submitted job ")[1].split(".")[0]


def wait_for(condition: Callable[[], Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.3)


@pytest.mark.slow
def test_a_run_that_trains_and_one_that_waits(cluster: Cluster, folder: Path) -> None:
    everything = "--nodes=3" if "n3" in cluster.run("sinfo", "--noheader", "--Node", "--format=%N") else "--nodes=2"
    first = launch(cluster, folder, "first")
    run = folder / "runs" / "first"
    journal = run / "journal.jsonl"
    wait_for(lambda: journal.exists() and journal.read_text().count("train/loss") > 3, START_SECONDS)
    blocker = ["sbatch", "--parsable", "--hold", everything, "--output=/dev/null", "--wrap=sleep 1"]
    other = cluster.run(*blocker).strip()  # somebody's job of another kind
    cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")  # nothing else begins
    second = launch(cluster, folder, "second")
    try:
        check_the_list(json.loads(call(cluster, "status", folder / "runs", "--json")), first, second, folder / "runs")
        assert "pending (PartitionDown)" in call(cluster, "status", folder / "runs")
        waiting = folder / "runs" / "second"
        assert json.loads(call(cluster, "status", waiting, "--json"))["state"] == "queued"
        assert f"took its job {second} out of the queue" in call(cluster, "stop", waiting)
        assert not (waiting / "STOP").exists()
        assert cluster.job(second)["JobState"] == "CANCELLED"
        shown = call(cluster, "status", run)
        assert f"{first} running" in shown
        assert f"tail -F {run}/slurm/{first}.log" in shown
        assert "rank 0 at" in (run / "slurm" / f"{first}.log").read_text()
        assert "asked" in call(cluster, "stop", run)
    finally:
        cluster.run("scancel", second, other, check=False)
        cluster.run("scontrol", "update", "PartitionName=main", "State=UP")
    cluster.wait(first, 120)
    found = json.loads(call(cluster, "status", folder / "runs", "--json"))
    assert not any(one["jobs"] for one in found)
    assert {Path(one["run"]).name: one["state"] for one in found} == {"first": "stopped", "second": "unknown"}


@pytest.mark.slow
def test_a_stop_reaches_a_job_that_waits_to_go_on_and_one_that_begins(cluster: Cluster, folder: Path) -> None:
    """The first has trained and waits in the queue again; the second begins with the request in its folder."""
    run, other = folder / "runs" / "again", folder / "runs" / "begins"
    again = launch(cluster, folder, "again")
    journal = run / "journal.jsonl"
    wait_for(lambda: journal.exists() and journal.read_text().count("train/loss") > 3, START_SECONDS)
    cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        cluster.run("scontrol", "requeue", again)
        wait_for(lambda: cluster.job(again)["JobState"] == "PENDING", 120)
        assert "took its job" in call(cluster, "stop", run)
        assert cluster.job(again)["JobState"] == "CANCELLED"
        assert json.loads(call(cluster, "status", run, "--json"))["next_action"] == "submit the run again to resume"
        begins = launch(cluster, folder, "begins")
        (other / "STOP").touch()
    finally:
        cluster.run("scontrol", "update", "PartitionName=main", "State=UP")
    assert cluster.wait(begins, 120) == "FAILED"
    assert cluster.job(begins)["ExitCode"] == "75:0"
    log = (other / "slurm" / f"{begins}.log").read_text()
    assert "asked to stop before it had begun" in log
    assert "trains on" not in log
    assert not (other / "STOP").exists()


def check_the_list(found: list[dict[str, Any]], first: str, second: str, runs: Path) -> None:
    by_run = {one["run"]: one for one in found}
    trains, waits = by_run[str(runs / "first")], by_run[str(runs / "second")]
    assert [job["id"] for job in trains["jobs"]] == [first]
    assert trains["state"] == "running"
    assert trains["step"] >= 0
    assert trains["loss"] > 0
    assert [job["id"] for job in waits["jobs"]] == [second]
    assert waits["state"] == "queued"
    assert waits["jobs"][0]["state"] == "PENDING"
    assert f"maskwright stop {waits['run']}" in waits["next_action"]
