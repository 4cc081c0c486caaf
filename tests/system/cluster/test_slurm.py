"""`maskwright launch slurm` on a real Slurm cluster: two nodes, each with its own network."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.runs import losses, metric, wait_for
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.jobs import (
    ENVIRONMENT,
    NASTY,
    ROOT,
    START_SECONDS,
    completed,
    has_trained,
    job_log,
    launch,
    train_here,
    write_run,
)
from tests.system.test_working_folder import executed, fill_with_names

STEPS = 200


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this module's runs."""
    return write_run(tmp_path_factory.mktemp("slurm") / NASTY, STEPS)


@pytest.fixture(scope="module")
def reference(config: Path) -> dict[int, float]:
    """The losses of the same config trained by two processes on this host."""
    return train_here(config, 2)


def test_two_nodes_train_like_two_processes(cluster: Cluster, config: Path) -> None:
    run, few = config.parent / "nodes", "train.steps=60"
    job_id = launch(cluster, config, run, "--job-name", NASTY, "track.system_seconds=0.1", few)
    job = cluster.job(job_id)
    assert job["JobName"] == NASTY
    assert "TresPerNode" not in job
    log = completed(cluster, run, job_id)
    assert "node 0: n1, interface eth0" in log
    assert "node 1: n2, interface eth0" in log
    # Two gradients are summed, in either order, and all else is the same arithmetic: no tolerance.
    assert losses(run) == train_here(config, 2, few)
    assert sorted(losses(run)) == list(range(1, 61))
    for node in ("n1", "n2"):
        seen = metric(run, f"system/{node}/memory_percent")
        assert len(seen) > 1
        assert all(0 < value < 100 for value in seen.values())


@pytest.mark.slow
@pytest.mark.short
def test_warned_job_saves_and_is_requeued(cluster: Cluster, config: Path, reference: dict[int, float]) -> None:
    run = config.parent / "requeued"
    job_id = launch(cluster, config, run)
    wait_for(has_trained(run, 5), START_SECONDS)
    cluster.run("scancel", "--batch", "--signal=USR1", job_id)
    log = completed(cluster, run, job_id)
    assert cluster.job(job_id)["Restarts"] == "1"
    assert "requeued to continue" in log
    assert losses(run) == reference
    assert len((run / "journal.jsonl").read_text().splitlines()) < 1.5 * STEPS, "it resumed, not from step 1"


@pytest.mark.slow
@pytest.mark.short
def test_deepspeeds_launcher_trains_like_launch_slurm(cluster: Cluster, config: Path, tmp_path: Path) -> None:
    """The shipped script, warned and requeued. The working folder has files that are called as modules."""
    (tmp_path / "run.yaml").write_bytes(config.read_bytes())
    fill_with_names(tmp_path)
    environment = {**ENVIRONMENT, "DS_ACCELERATOR": "cpu", "PYTHONPATH": ""}
    settings = ["--nodes", "2", "--gpus-per-node", "1", "--cpu", "track.uri=none"]
    words = ["maskwright", "launch", "slurm", "run.yaml", *settings, "run.dir=launched"]
    launched = cluster.run(*words, cwd=tmp_path, **environment).split("Submitted job ")[1].split(".")[0]
    completed(cluster, tmp_path / "launched", launched)

    options = ["--parsable", "--gres=gpu:1", "--cpus-per-task=1", "--time=10", "--output=job.log"]
    script = ROOT / "configs" / "cluster" / "deepspeed.sbatch"
    job_id = cluster.run("sbatch", *options, script, "run.yaml", "run", cwd=tmp_path, **environment).strip()
    wait_for(has_trained(tmp_path / "run", 5), START_SECONDS)
    cluster.run("scancel", "--batch", "--signal=USR1", job_id)
    state, log = cluster.wait(job_id, START_SECONDS), (tmp_path / "job.log").read_text()
    assert state == "COMPLETED", log
    assert cluster.job(job_id)["Restarts"] == "1"
    assert "the run is stopped, exit code 75" in log
    assert "FutureWarning" not in log
    assert losses(tmp_path / "run") == losses(tmp_path / "launched")
    assert sorted(losses(tmp_path / "run")) == list(range(1, STEPS + 1))
    assert len((tmp_path / "run" / "journal.jsonl").read_text().splitlines()) < 1.5 * STEPS, "it resumed"
    assert not executed(tmp_path)


@pytest.mark.slow
def test_a_run_survives_an_ill_node_killed_ranks_a_second_job_and_a_preemption(
    cluster: Cluster, config: Path, reference: dict[int, float], harm: Callable[..., None]
) -> None:
    """One job through all of it: it ends as COMPLETED, with the losses of a run that nothing befell."""
    run = config.parent / "tried"
    run.mkdir()
    slurmd = cluster.run("pgrep", "--full", "slurmd -D -N n2").split()[0]
    cluster.run("nsenter", f"--target={slurmd}", "--mount", "mount", "-t", "tmpfs", "-o", "ro", "tmpfs", run)
    harm("slow:rank=0,step=1,seconds=0.05")  # not to be over too soon
    try:
        job_id = launch(cluster, config, run, "cluster.spare_nodes=1", "checkpoint.every_steps=10")
        wait_for(has_trained(run, 15), START_SECONDS)
        assert "trains on n1 n3" in job_log(run, job_id)

        second_log = config.parent.parent / "second.log"
        second = cluster.run("sbatch", "--parsable", f"--output={second_log}", run / "slurm" / "job.sh").strip()
        assert cluster.wait(second, 60) == "FAILED"
        assert f"Slurm job {job_id} is training in this run folder" in second_log.read_text()

        cluster.run("kill", "-KILL", *cluster.run("pgrep", "--full", "pretrain.train").split())
        wait_for(lambda: "starts again on n1 n3" in job_log(run, job_id), 90)
        assert not cluster.run("pgrep", "--full", "pretrain.train", check=False), "ranks are left"
        before = len((run / "journal.jsonl").read_text().splitlines())
        wait_for(lambda: len((run / "journal.jsonl").read_text().splitlines()) > before + 5, START_SECONDS)
        urgent = ["--partition=urgent", "--exclusive", "--nodes=3", "--output=/dev/null", "--wrap=true"]
        assert cluster.wait(cluster.run("sbatch", "--parsable", *urgent).strip(), 60) == "COMPLETED"

        completed(cluster, run, job_id)
    finally:
        cluster.run("nsenter", f"--target={slurmd}", "--mount", "umount", run)
    assert cluster.job(job_id)["Restarts"] == "1"
    assert losses(run) == reference
    with sqlite3.connect(config.parent / "mlflow.db") as database:
        assert database.execute("select status from runs where name = 'tried'").fetchall() == [("FINISHED",)]
