"""`maskwright launch slurm` on a real Slurm cluster: site settings, two and three nodes, ZeRO."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.support.datasets import make_dataset
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.test_slurm import PATH, ROOT, START_SECONDS, job_log, losses, wait_for

STEPS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the data set and the config of this module's runs."""
    path = tmp_path_factory.mktemp("launch")
    rng = np.random.default_rng(0)
    make_dataset(path / "data", [rng.integers(5, 1000, size=int(n)) for n in rng.integers(20, 200, size=400)])
    config = {
        "run": {"dir": str(path / "run"), "seed": 3},
        "data": {"train": str(path / "data"), "seq_len": 64},
        "model": {"size": {"layers": 2, "hidden": 64, "heads": 2}},
        "train": {"steps": STEPS, "global_batch_size": 12, "precision": "fp32"},
        "track": {"uri": f"sqlite:///{path}/mlflow.db"},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return path


def train_here(folder: Path, processes: int, *overrides: str) -> dict[int, float]:
    """The losses of the config, trained by so many processes on this host."""
    run = folder / f"local-{len(list(folder.iterdir()))}"
    command = [sys.executable, "-m", "launchers.cli", "train", folder / "config.yaml", "--procs", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": PATH}
    words = [*map(str, command), *overrides, f"run.dir={run}"]
    subprocess.run(words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=True)
    return losses(run)


def launch(cluster: Cluster, config: Path, *options: str | Path, **environment: str) -> str:
    command = [sys.executable, "-m", "launchers.cli", "launch", "slurm", config, "--cpu", *options]
    printed = cluster.run(*command, cwd=ROOT, **({"OMP_NUM_THREADS": "1", "PATH": PATH} | environment))
    return printed.split("Submitted job ")[1].split(".")[0]


@pytest.mark.slow
@pytest.mark.parametrize("nodes, stage", [(3, 3), pytest.param(2, 3, marks=pytest.mark.short), (3, 1)])
def test_nodes_train_like_processes_of_one_host(cluster: Cluster, folder: Path, nodes: int, stage: int) -> None:
    """Two nodes with ZeRO-1 are in test_slurm.py. In fp32, sums of gradients are of the same numbers in one order."""
    run = folder / f"nodes-{nodes}-{stage}"
    overrides = [f"zero.stage={stage}"]
    job_id = launch(cluster, folder / "config.yaml", "--nodes", str(nodes), *overrides, f"run.dir={run}")
    state = cluster.wait(job_id, START_SECONDS)
    log = job_log(run, job_id)
    assert state == "COMPLETED", log
    for rank in range(nodes):
        assert f"node {rank}: n{rank + 1}, interface eth0" in log
    assert len(losses(run)) == STEPS
    assert losses(run) == train_here(folder, nodes, *overrides)


SITE = """\
setup: |
  export SETUP_SAYS="$HOME, then setup"
environment: {FROM_SITE: "it's $HOME"}
options: [--export=NONE]
"""


@pytest.mark.slow
def test_a_site_of_its_own_ways(cluster: Cluster, folder: Path) -> None:
    """Two processes a node, with a profile, and no environment handed on; the config is edited while the job waits."""
    run = folder / "se\"ed's 100%a $(touch pwned)"
    (folder / "site.yaml").write_text(SITE)
    config = folder / "edited.yaml"
    config.write_text((folder / "config.yaml").read_text())
    options = ["--profile", folder / "site.yaml", "--gpus-per-node", "2"]
    options += ["cluster.options=[--hold, --export=NONE]", f"run.dir={json.dumps(str(run))}"]
    job_id = launch(cluster, config, *options, MASKWRIGHT_NOT_HANDED_ON="1")
    config.write_text("run: edited while the job waits")
    assert f"Comment=maskwright:{run} " in cluster.run("scontrol", "--oneliner", "show", "job", job_id)
    cluster.run("scontrol", "release", job_id)

    wait_for(lambda: len(ranks(cluster)) >= 2, START_SECONDS)
    for pid in ranks(cluster):
        environment = cluster.run("cat", f"/proc/{pid}/environ").split("\0")
        assert "FROM_SITE=it's $HOME" in environment
        assert any(name.startswith("SETUP_SAYS=") and name.endswith(", then setup") for name in environment)
        assert "MASKWRIGHT_NOT_HANDED_ON=1" not in environment
    state = cluster.wait(job_id, START_SECONDS)
    assert state == "COMPLETED", job_log(run, job_id)
    assert losses(run) == train_here(folder, 2)
    assert not list(folder.rglob("pwned"))
    assert not (ROOT / "pwned").exists()


def ranks(cluster: Cluster) -> list[str]:
    """Process ids of training processes."""
    return cluster.run("pgrep", "--full", "pretrain.train", check=False).split()


ARRAY = """\
#!/bin/bash
#SBATCH --array=1-3
#SBATCH --requeue
#SBATCH --open-mode=append
echo "start ${{SLURM_RESTART_COUNT:-0}}" >>"{folder}/starts-$SLURM_ARRAY_TASK_ID"
cd {root}
if [ "$SLURM_ARRAY_TASK_ID-${{SLURM_RESTART_COUNT:-0}}" = 3-0 ]; then
    {python} -c 'from launchers.slurm import client; print(client.requeue([]))'
    sleep 60
fi
sleep 3
"""


@pytest.mark.slow
def test_the_last_element_of_an_array_queues_itself_alone_again(cluster: Cluster, tmp_path: Path) -> None:
    """Its SLURM_JOB_ID is the number of the array, which means all elements to scontrol."""
    script = tmp_path / "array.sh"
    script.write_text(ARRAY.format(folder=tmp_path, root=ROOT, python=sys.executable))
    log = f"--output={tmp_path}/log-%a"
    array = cluster.run("sbatch", "--parsable", log, script).strip()
    for element in (1, 2, 3):
        logged = tmp_path / f"log-{element}"
        assert cluster.wait(f"{array}_{element}", START_SECONDS) == "COMPLETED", logged.read_text()
    starts = [(tmp_path / f"starts-{element}").read_text().split("\n")[:-1] for element in (1, 2, 3)]
    assert starts == [["start 0"], ["start 0"], ["start 0", "start 1"]]
