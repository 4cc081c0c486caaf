"""Every command of docs/slurm.md, typed on the login node of a real Slurm cluster of the page's size."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from data_prep.tokenizer import train_tokenizer
from pretrain.run import RunFolder
from tests.support.slurm_page import JOB_ID, ROOT, SHARED, blocks, lay_out
from tests.system.cluster.cluster import Cluster, slurm_cluster

PRELUDE = f"""\
set -e
maskwright() {{ {sys.executable} -m launchers.cli "$@"; }}
export PYTHONPATH={ROOT}
"""


@pytest.fixture
def large(cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Nodes with eight GPUs that start no job. (`cluster` skips where there can be no cluster.)"""
    with slurm_cluster(tmp_path / "large", nodes=4, cores=64, gpus=8) as running:
        for name in ("gpu", "cpu"):
            running.run("scontrol", "create", f"PartitionName={name}", "Nodes=ALL")
        running.run("scontrol", "update", "NodeName=n[1-4]", "State=DRAIN", "Reason=page")
        yield running


@pytest.mark.slow
def test_the_commands_of_the_page(large: Cluster, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    configs = lay_out(shared)
    (shared / "venv").symlink_to(sys.prefix)
    (shared / "configs").symlink_to(ROOT / "configs")
    (shared / "prep" / "text").mkdir(parents=True)
    text = zstandard.compress(b'{"text": "a little of it"}\n')
    (shared / "prep" / "text" / "a.jsonl.zst").write_bytes(text)
    train_tokenizer(["a little of it"], "wordpiece", 60, shared / "prep" / "tok")
    scripts = [
        *(block for block in blocks("bash") if "docker" not in block),
        *(f"maskwright launch slurm {config.name}\n" for config in configs),
    ]
    for script in scripts:
        job_id = newest_job(large)
        typed = PRELUDE + script.replace(SHARED, str(shared)).replace(JOB_ID, job_id)
        printed = large.run("bash", "-c", typed, cwd=shared / "prep" if " prep " in script else shared)
        asked = sum("maskwright launch slurm" in line and "--dry-run" not in line for line in script.splitlines())
        assert printed.count("Submitted job") == asked, printed
        pretend_to_run(shared, newest_job(large))
    comments = large.run("squeue", "--noheader", "--format=%k").splitlines()
    assert {f"maskwright:{shared}/runs/books", f"maskwright:{shared}/runs/books-2"} <= {*comments}


def newest_job(cluster: Cluster) -> str:
    """The highest job id; for elements, the id of their array."""
    return max(cluster.run("squeue", "--noheader", "--format=%F").split(), key=int, default="0")


def pretend_to_run(shared: Path, job_id: str) -> None:
    """Write the files of a running job, for the commands that read them."""
    for path in shared.glob("runs/**/slurm/config.yaml"):
        (path.parent / f"{job_id}.log").touch()
        RunFolder(path.parents[1]).write_status("running", 1, 10, "training", "wait")
