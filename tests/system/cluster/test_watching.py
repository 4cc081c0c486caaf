"""`maskwright status` and `stop` of jobs in the queue of a real Slurm cluster."""

import json
from pathlib import Path

import pytest

from tests.support.runs import wait_for
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.jobs import START_SECONDS, has_trained, job_log, launch, maskwright, write_run


@pytest.mark.slow
def test_a_run_that_trains_and_one_that_waits(cluster: Cluster, tmp_path: Path) -> None:
    everything = "--nodes=3" if "n3" in cluster.run("sinfo", "--noheader", "--Node", "--format=%N") else "--nodes=2"
    config, runs = write_run(tmp_path, 100_000), tmp_path / "runs"
    run, waiting = runs / "first", runs / "second"
    first = launch(cluster, config, run)
    wait_for(has_trained(run, 4), START_SECONDS)
    blocker = ["sbatch", "--parsable", "--hold", everything, "--output=/dev/null", "--wrap=sleep 1"]
    other = cluster.run(*blocker).strip()  # somebody's job of another kind
    cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")  # nothing else begins
    second = launch(cluster, config, waiting)
    try:
        listed = {one["run"]: one for one in json.loads(maskwright(cluster, "status", runs, "--json"))}
        trains, waits = listed[str(run)], listed[str(waiting)]
        assert [job["id"] for job in trains["jobs"]] == [first]
        assert trains["state"] == "running"
        assert trains["step"] >= 0
        assert trains["loss"] > 0
        assert [job["id"] for job in waits["jobs"]] == [second]
        assert waits["state"] == "queued"
        assert waits["jobs"][0]["state"] == "PENDING"
        assert f"maskwright stop {waiting}" in waits["next_action"]
        assert "pending (PartitionDown)" in maskwright(cluster, "status", runs)
        assert json.loads(maskwright(cluster, "status", waiting, "--json"))["state"] == "queued"
        assert f"took its job {second} out of the queue" in maskwright(cluster, "stop", waiting)
        assert not (waiting / "STOP").exists()
        assert cluster.job(second)["JobState"] == "CANCELLED"
        shown = maskwright(cluster, "status", run)
        assert f"{first} running" in shown
        assert f"tail -F {run}/slurm/{first}.log" in shown
        assert "rank 0 at" in job_log(run, first)
        assert "asked" in maskwright(cluster, "stop", run)
    finally:
        cluster.run("scancel", second, other, check=False)
        cluster.run("scontrol", "update", "PartitionName=main", "State=UP")
    assert cluster.wait(first, 120) == "FAILED"
    assert (cluster.job(first)["ExitCode"], cluster.job(first)["Restarts"]) == ("75:0", "0")
    assert "submit the run again to resume" in job_log(run, first)
    found = json.loads(maskwright(cluster, "status", runs, "--json"))
    assert not any(one["jobs"] for one in found)
    assert {Path(one["run"]).name: one["state"] for one in found} == {"first": "stopped", "second": "unknown"}
