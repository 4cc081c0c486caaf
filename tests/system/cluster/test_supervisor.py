"""Jobs on a real Slurm cluster with lost nodes, time limits and killed processes."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pretrain.run import RunFolder
from tests.support.fault_injection import variables
from tests.support.runs import losses, wait_for
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.jobs import START_SECONDS, completed, has_trained, job_log, launch, ranks, write_run

pytestmark = pytest.mark.slow
GONE_SECONDS = 30  # KillWait is 5 s here


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this module's runs."""
    guard, checkpoint = {"hang_seconds": 5}, {"every_steps": 10}
    return write_run(tmp_path_factory.mktemp("supervisor"), 100_000, guard=guard, checkpoint=checkpoint)


@pytest.fixture
def slow_steps(harm: Callable[..., None]) -> None:
    harm("slow:rank=0,step=1,seconds=0.2")


def submit(cluster: Cluster, config: Path, name: str, *options: str) -> tuple[Path, str]:
    """Submit a run that is impatient with lost nodes, and wait until it has trained; its folder, and the job's id."""
    run = config.parent / name
    job_id = launch(cluster, config, run, "cluster.health_seconds=10", *options)
    wait_for(has_trained(run, 15), START_SECONDS)
    return run, job_id


def on_node(cluster: Cluster, node: str, pattern: str) -> list[str]:
    """The processes of a node whose command line has the pattern."""
    slurmd = cluster.run("pgrep", "--full", f"slurmd -D -N {node}").split()[0]
    uts = cluster.run("readlink", f"/proc/{slurmd}/ns/uts")
    found = cluster.run("pgrep", "--full", pattern, check=False).split()
    return [pid for pid in found if cluster.run("readlink", f"/proc/{pid}/ns/uts", check=False) == uts]


def wait_gone(cluster: Cluster) -> None:
    """Wait until no rank is left on any node."""
    wait_for(lambda: not ranks(cluster), GONE_SECONDS)


@pytest.mark.parametrize("whole_node", [True, False])
def test_a_stopped_node_is_replaced_by_a_spare(
    cluster: Cluster, config: Path, slow_steps: None, whole_node: bool
) -> None:
    """All of its processes are stopped, or only the processes of the run, which can then be killed."""
    run, job_id = submit(cluster, config, f"stopped-{whole_node}", "cluster.spare_nodes=1", "train.steps=60")
    stopped = on_node(cluster, "n2", "slurmd|slurmstepd|pretrain" if whole_node else "pretrain.train")
    cluster.run("kill", "-STOP", *stopped)
    try:
        log = completed(cluster, run, job_id)
    finally:
        cluster.run("kill", "-CONT", *stopped, check=False)
    assert "no sign of life from rank 1 (on n2)" in log
    assert f"starts again on {'n1 n3' if whole_node else 'n1 n2'}" in log
    assert sorted(losses(run)) == list(range(1, 61))
    wait_gone(cluster)


@pytest.fixture
def slow_controller(cluster: Cluster) -> Iterator[None]:
    """Slurm marks a lost node as down only after the supervisor has noticed. The requeued job waits for that."""
    cluster.configure("SlurmdTimeout", 75)
    yield
    cluster.configure("SlurmdTimeout", 30)


def test_a_lost_node_without_a_spare_is_left_out_of_the_next_start(
    cluster: Cluster, config: Path, slow_steps: None, slow_controller: None
) -> None:
    run, job_id = submit(cluster, config, "excluded", "train.steps=60")
    stopped = on_node(cluster, "n2", "slurmd|slurmstepd|pretrain")
    cluster.run("kill", "-STOP", *stopped)
    try:
        wait_for(lambda: "requeued to continue without n2" in job_log(run, job_id), 120)
        wait_for(lambda: "trains on n1 n3" in job_log(run, job_id), 180)
    finally:
        cluster.run("kill", "-CONT", *stopped, check=False)
    completed(cluster, run, job_id)
    assert cluster.job(job_id)["ExcNodeList"] == "n2"
    assert sorted(losses(run)) == list(range(1, 61))


def test_the_first_node_dies_and_slurm_queues_the_job_again(cluster: Cluster, config: Path, slow_steps: None) -> None:
    """The batch script dies too, so only Slurm can report it. The run resumes from its checkpoint on other nodes."""
    run, job_id = submit(cluster, config, "first_node", "train.steps=60")
    cluster.run("kill", "-KILL", *on_node(cluster, "n1", "."))
    try:
        wait_for(lambda: cluster.job(job_id)["Restarts"] == "1", 120)
        wait_for(lambda: "start 2 on n2 n3" in job_log(run, job_id), 120)
        log = completed(cluster, run, job_id)
    finally:
        cluster.start_node("n1")
    assert "received" not in log, "nobody was warned"
    assert sorted(losses(run)) == list(range(1, 61))
    first = [line for line in (run / "journal.jsonl").read_text().splitlines() if line.startswith('{"step":1,')]
    assert len(first) == 1, "it resumed, not from step 1"
    wait_gone(cluster)


def test_a_checkpoint_that_comes_too_late_for_the_time_limit(cluster: Cluster, config: Path) -> None:
    """A step of the first start lasts beyond the limit; the next start resumes from the checkpoint before."""
    run = config.parent / "late"
    exports = [f"export {name}={value}" for name, value in variables("slow:rank=0,step=15,seconds=900").items()]
    fault = f'if [ -z "${{SLURM_RESTART_COUNT:-}}" ]; then {"; ".join(exports)}; fi'
    options = [f"cluster.setup={json.dumps(fault)}", "train.steps=20", "guard.hang_seconds=0"]
    job_id = launch(cluster, config, run, *options)
    cluster.run("scancel", job_id)
    script = run / "slurm" / "job.sh"
    job_id = cluster.run("sbatch", "--parsable", "--time=3", "--signal=B:USR1@30", script).strip()
    log = completed(cluster, run, job_id, 900)
    assert cluster.job(job_id)["Restarts"] == "1"
    assert "no checkpoint in the time that Slurm left" in log
    assert "submit with a larger cluster.signal_seconds" in log
    assert "s after Slurm's warning" in log
    assert sorted(losses(run)) == list(range(1, 21))
    wait_gone(cluster)


def test_time_limits_and_a_run_that_finishes_all_the_same(
    cluster: Cluster, config: Path, harm: Callable[..., None]
) -> None:
    """At least three requeues, with the losses of a run without any. A start is warned after 20 s, in step 2 or 3."""
    steps, unbroken = ["train.steps=10", "guard.hang_seconds=0"], config.parent / "unbroken"
    completed(cluster, unbroken, launch(cluster, config, unbroken, *steps))
    harm("slow:rank=0,step=1,seconds=8")
    run = config.parent / "limited"
    job_id = launch(cluster, config, run, "--time", "10", *steps)
    cluster.run("scancel", job_id)
    script = run / "slurm" / "job.sh"
    job_id = cluster.run("sbatch", "--parsable", "--time=2", "--signal=B:USR1@100", script).strip()
    log = completed(cluster, run, job_id, 900)
    assert int(cluster.job(job_id)["Restarts"]) >= 3, log
    assert losses(run) == losses(unbroken)
    seconds = [float(text) for text in re.findall(r"([0-9.]+) s after Slurm's warning", log)]
    assert len(seconds) >= 3
    assert 0 < max(seconds) < 60


def test_scancel_ends_the_job_for_good(cluster: Cluster, config: Path) -> None:
    run, job_id = submit(cluster, config, "cancelled")
    cluster.run("scancel", job_id)
    assert cluster.wait(job_id, 60) == "CANCELLED"
    wait_gone(cluster)
    assert cluster.job(job_id)["Restarts"] == "0"
    assert RunFolder(run).read_status().state in ("stopped", "failed")


def test_a_killed_supervisor_leaves_no_ranks(cluster: Cluster, config: Path) -> None:
    run, job_id = submit(cluster, config, "orphans")
    cluster.run("kill", "-KILL", cluster.run("pgrep", "--full", "launchers.slurm.supervisor").split()[0])
    wait_gone(cluster)
    assert cluster.wait(job_id, 60) == "FAILED"
    assert cluster.job(job_id)["Restarts"] == "0"
    assert RunFolder(run).read_status().state in ("stopped", "failed")
