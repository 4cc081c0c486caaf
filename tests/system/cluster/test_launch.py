"""`maskwright launch slurm` on a real Slurm cluster: site settings, two and three nodes, ZeRO."""

from pathlib import Path

import pytest

from tests.support.runs import losses, wait_for
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.jobs import NASTY, ROOT, START_SECONDS, completed, launch, ranks, train_here, write_run

STEPS = 30


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this module's runs."""
    return write_run(tmp_path_factory.mktemp("launch"), STEPS, global_batch_size=12)


@pytest.mark.slow
@pytest.mark.parametrize("nodes, stage", [(3, 3), pytest.param(2, 3, marks=pytest.mark.short), (3, 1)])
def test_nodes_train_like_processes_of_one_host(cluster: Cluster, config: Path, nodes: int, stage: int) -> None:
    """Two nodes with ZeRO-1 are in test_slurm.py. In fp32, sums of gradients are of the same numbers in one order."""
    run, overrides = config.parent / f"nodes-{nodes}-{stage}", [f"zero.stage={stage}"]
    job_id = launch(cluster, config, run, "--nodes", str(nodes), *overrides)
    log = completed(cluster, run, job_id)
    for rank in range(nodes):
        assert f"node {rank}: n{rank + 1}, interface eth0" in log
    assert len(losses(run)) == STEPS
    assert losses(run) == train_here(config, nodes, *overrides)


SITE = """\
setup: |
  export SETUP_SAYS="$HOME, then setup"
environment: {FROM_SITE: "it's $HOME"}
options: [--export=NONE]
"""


@pytest.mark.slow
def test_a_site_of_its_own_ways(cluster: Cluster, config: Path) -> None:
    """Two processes a node, with a profile, and no environment handed on; the config is edited while the job waits."""
    run, profile, edited = config.parent / NASTY, config.with_name("site.yaml"), config.with_name("edited.yaml")
    profile.write_text(SITE)
    edited.write_text(config.read_text())
    options = ["--profile", profile, "--nodes", "1", "--gpus-per-node", "2", "cluster.options=[--hold, --export=NONE]"]
    job_id = launch(cluster, edited, run, *options, MASKWRIGHT_NOT_HANDED_ON="1")
    edited.write_text("run: edited while the job waits")
    assert f"Comment=maskwright:{run} " in cluster.run("scontrol", "--oneliner", "show", "job", job_id)
    cluster.run("scontrol", "release", job_id)

    wait_for(lambda: len(ranks(cluster)) >= 2, START_SECONDS)
    for pid in ranks(cluster):
        environment = cluster.run("cat", f"/proc/{pid}/environ").split("\0")
        assert "FROM_SITE=it's $HOME" in environment
        assert any(name.startswith("SETUP_SAYS=") and name.endswith(", then setup") for name in environment)
        assert "MASKWRIGHT_NOT_HANDED_ON=1" not in environment
    completed(cluster, run, job_id)
    assert losses(run) == train_here(config, 2)
    assert not list(config.parent.rglob("pwned"))
    assert not (ROOT / "pwned").exists()
