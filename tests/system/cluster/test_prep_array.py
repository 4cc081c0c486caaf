"""`maskwright launch prep` on a real Slurm cluster, with killed, cancelled and restarted elements."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

from data_prep.jobs import unfinished_stages
from data_prep.tokenizer import train_tokenizer
from tests.support import runs
from tests.support.prep import WORDS, jsonl, tree
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.jobs import NASTY, maskwright


class Corpus:
    """Many small inputs, with copies among their documents, and a data set to make of them in a folder."""

    def __init__(self, folder: Path, files: int) -> None:
        rng = np.random.default_rng(0)
        self.folder = folder
        self.out = folder / "set"
        self.files = files
        (folder / "text").mkdir(parents=True)
        texts = []
        for number in range(files):
            texts = [" ".join(rng.choice(WORDS, size=20)) for _ in range(8)] + texts[:2]
            (folder / "text" / f"{number:05}.jsonl").write_bytes(jsonl(texts))
        train_tokenizer([" ".join(WORDS)], "wordpiece", 80, folder / "tok")

    def prep(self, out: Path, *options: str) -> None:
        words = ["--input", self.folder / "text", "--tokenizer", self.folder / "tok", "--out", out, *options]
        runs.succeed("prep", "run", *words)

    def launch(self, cluster: Cluster, *options: str) -> str:
        return maskwright(cluster, "launch", "prep", self.out, "--cpus", "1", *options)

    def id(self, stage: str) -> str:
        """The id of the last submission's job of a stage."""
        folder = max((self.out / "prep" / "slurm").glob("submission-*"))
        return dict(line.split() for line in (folder / "jobs").read_text().splitlines())[stage]

    def lists(self, stage: str) -> list[list[int]]:
        """The tasks of each element of the last submission's stage."""
        folder = max((self.out / "prep" / "slurm").glob("submission-*"))
        return [[int(task) for task in line.split()] for line in (folder / f"{stage}.txt").read_text().splitlines()]

    def log(self, job_id: str) -> str:
        return (self.out / "prep" / "slurm" / f"{job_id}.log").read_text()

    def wait(self, cluster: Cluster, seconds: float) -> tuple[str, str]:
        """The final state and the log of the last submission's merge job."""
        merge = self.id("merge")
        return cluster.wait(merge, seconds), self.log(merge)

    def check_complete(self, cluster: Cluster) -> None:
        """The data set has the bytes of one that is made by one command, and there is nothing left to do."""
        local = self.folder / "local"
        self.prep(local, "--workers", "2")
        assert contents(self.out) == contents(local)
        assert len(contents(local)) > 2 * self.files, "shards and their indices"
        assert "is complete" in self.launch(cluster)


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a data set."""
    return {name: digest for name, digest in tree(folder).items() if not name.startswith("prep/")}


def running(cluster: Cluster, least: int) -> dict[str, str]:
    """Process ids of elements ("JOB_INDEX") that have just begun, when there are so many, youngest first.

    Each is stopped as soon as it is found: on a busy machine it could end before the test reaches it.
    """
    deadline = time.monotonic() + 60
    while True:
        found = {}
        pids = cluster.run("pgrep", "--full", "launchers.cli prep task", check=False).split()
        for pid in sorted(map(int, pids), reverse=True):
            environment = cluster.run("cat", f"/proc/{pid}/environ", check=False)
            if match := re.search(r"SLURM_ARRAY_JOB_ID=(\d+)", environment):
                index = re.search(r"SLURM_ARRAY_TASK_ID=(\d+)", environment)
                assert index
                cluster.run("kill", "-STOP", str(pid), check=False)
                found[f"{match[1]}_{index[1]}"] = str(pid)
        if len(found) >= least:
            return found
        cluster.run("kill", "-CONT", *found.values(), check=False)
        assert time.monotonic() < deadline, f"{least} elements never ran at the same time"


def test_lost_elements_are_named_and_done_by_the_next_launch(cluster: Cluster, tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / NASTY, files=42)
    corpus.prep(corpus.out, "--plan-only")
    cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")  # elements begin when the test is ready
    try:
        printed = corpus.launch(cluster, "--tasks-per-job", "3", "--job-name", NASTY)
        tasks, merge = corpus.id("task"), corpus.id("merge")
        assert f"task as job {tasks}, array 1-14." in printed
        assert f"scancel {tasks} {merge}" in printed
        assert corpus.lists("task") == [list(range(n, n + 3)) for n in range(0, 42, 3)]
        cluster.run("scancel", f"{tasks}_[13-14]")
    finally:
        cluster.run("scontrol", "update", "PartitionName=main", "State=UP")
    killed, cancelled, requeued = list(begun := running(cluster, 3))[:3]
    cluster.run("kill", "-KILL", begun[killed])
    cluster.run("scancel", cancelled)
    cluster.run("scontrol", "requeue", requeued)
    cluster.run("kill", "-CONT", *begun.values(), check=False)
    with pytest.raises(AssertionError, match=f"scancel ({tasks} )?{merge}"):  # the tasks may have ended
        corpus.launch(cluster)

    state, log = corpus.wait(cluster, 120)
    assert state == "FAILED", log
    assert "start 2" in corpus.log(requeued)
    missing = list(unfinished_stages(corpus.out)["task"])
    lines = {name: corpus.lists("task")[int(name.split("_")[1]) - 1] for name in begun}
    assert {*range(36, 42), lines[killed][-1], lines[cancelled][-1]} <= set(missing)
    assert set(missing) <= {*range(36, 42), *lines[killed], *lines[cancelled]}
    assert f"{len(missing)} of 42 tasks" in log
    assert ", ".join(map(str, missing)) in log
    assert not (corpus.out / "manifest.json").exists()

    corpus.launch(cluster, "--tasks-per-job", "3")
    assert [task for line in corpus.lists("task") for task in line] == missing
    state, log = corpus.wait(cluster, 120)
    assert state == "COMPLETED", log
    corpus.check_complete(cluster)
    assert not list(tmp_path.rglob("pwned"))
