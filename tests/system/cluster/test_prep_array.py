"""`maskwright launch prep` on a real Slurm cluster, with killed, cancelled and restarted elements."""

import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from data_prep.jobs import unfinished_stages
from data_prep.tokenizer import train_tokenizer
from tests.system.cluster.cluster import Cluster, slurm_cluster

ROOT = Path(__file__).resolve().parents[3]
NASTY = 'it\'s a $(touch pwned) "run" 100%A_%a'  # every quoting on the way has to hold
WORDS = ["the", "curved", "blades", "by", "carolyn", "wells", "never", "mind", "others", "some", "little", "meaning"]
MAX_ARRAY_SIZE = 6


@pytest.fixture(scope="module")
def small_arrays(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with arrays of at most five elements. (`cluster` skips where there can be none.)"""
    with slurm_cluster(tmp_path_factory.mktemp("small"), nodes=2, max_array_size=MAX_ARRAY_SIZE) as running:
        yield running


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
            lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
            (folder / "text" / f"{number:05}.jsonl").write_text(lines)
        train_tokenizer([" ".join(WORDS)], "wordpiece", 80, folder / "tok")

    def prep(self, out: Path, *options: str) -> None:
        words = ["--input", self.folder / "text", "--tokenizer", self.folder / "tok", "--out", out, *options]
        subprocess.run(
            [sys.executable, "-m", "launchers.cli", "prep", "run", *map(str, words)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            check=True,
        )

    def launch(self, cluster: Cluster, *options: str) -> str:
        command = [sys.executable, "-m", "launchers.cli", "launch", "prep", str(self.out), "--cpus", "1", *options]
        return cluster.run(*command, cwd=ROOT)

    def ids(self, stage: str) -> list[str]:
        """The ids of the last submission's jobs of a stage."""
        folder = max((self.out / "prep" / "slurm").glob("submission-*"))
        lines = [line.split() for line in (folder / "jobs").read_text().splitlines()]
        return [job_id for name, job_id in lines if name == stage]

    def lists(self, stage: str) -> list[list[int]]:
        """The tasks of each element of the last submission's stage."""
        folder = max((self.out / "prep" / "slurm").glob("submission-*"))
        return [[int(task) for task in line.split()] for line in (folder / f"{stage}.txt").read_text().splitlines()]

    def log(self, job_id: str) -> str:
        return (self.out / "prep" / "slurm" / f"{job_id}.log").read_text()

    def wait(self, cluster: Cluster, seconds: float) -> tuple[str, str]:
        """The final state and the log of the last submission's merge job."""
        (merge,) = self.ids("merge")
        return cluster.wait(merge, seconds), self.log(merge)

    def check_complete(self, cluster: Cluster, *options: str) -> None:
        """The data set has the bytes of one that is made by one command, and there is nothing left to do."""
        local = self.folder / "local"
        self.prep(local, "--workers", "2", *options)
        assert contents(self.out) == contents(local)
        assert len(contents(local)) > 2 * self.files, "shards and their indices"
        assert "is complete" in self.launch(cluster)


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a data set."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder).parts[0] != "prep"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def running(cluster: Cluster, least: int) -> dict[str, str]:
    """Process ids of elements ("JOB_INDEX") that have just begun, when there are so many, youngest first."""
    deadline = time.monotonic() + 60
    while True:
        found = {}
        pids = cluster.run("pgrep", "--full", "launchers.cli prep task", check=False).split()
        for pid in sorted(map(int, pids), reverse=True):
            environment = cluster.run("cat", f"/proc/{pid}/environ", check=False)
            if match := re.search(r"SLURM_ARRAY_JOB_ID=(\d+)", environment):
                index = re.search(r"SLURM_ARRAY_TASK_ID=(\d+)", environment)
                assert index
                found[f"{match[1]}_{index[1]}"] = str(pid)
        if len(found) >= least:
            return found
        assert time.monotonic() < deadline, f"{least} elements never ran at the same time"


def test_lost_elements_are_named_and_done_by_the_next_launch(small_arrays: Cluster, tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / NASTY, files=40)
    corpus.prep(corpus.out, "--plan-only")
    printed = corpus.launch(small_arrays, "--tasks-per-job", "4", "--job-name", NASTY)
    first, second = corpus.ids("task")
    (merge,) = corpus.ids("merge")
    assert f"task as job {first} {second}, array 1-5 and 1-5." in printed
    assert f"scancel {first} {second} {merge}" in printed
    assert corpus.lists("task") == [list(range(n, n + 4)) for n in range(0, 40, 4)]

    small_arrays.run("scancel", f"{second}_[4-5]")  # they wait: eight others take all cores
    killed, cancelled, requeued = list(begun := running(small_arrays, 3))[:3]
    small_arrays.run("kill", "-KILL", begun[killed])
    small_arrays.run("scancel", cancelled)
    small_arrays.run("scontrol", "requeue", requeued)
    with pytest.raises(AssertionError, match=f"scancel ({first} )?({second} )?{merge}"):  # either may have ended
        corpus.launch(small_arrays)

    state, log = corpus.wait(small_arrays, 120)
    assert state == "FAILED", log
    assert "start 2" in corpus.log(requeued)
    missing = list(unfinished_stages(corpus.out)["task"])
    lists = corpus.lists("task")
    lines = {name: lists[int(name.split("_")[1]) - 1 + 5 * name.startswith(f"{second}_")] for name in begun}
    assert {*range(32, 40), lines[killed][-1], lines[cancelled][-1]} <= set(missing)
    assert set(missing) <= {*range(32, 40), *lines[killed], *lines[cancelled]}
    assert f"{len(missing)} of 40 tasks" in log
    assert ", ".join(map(str, missing)) in log
    assert not (corpus.out / "manifest.json").exists()

    corpus.launch(small_arrays, "--tasks-per-job", "4")
    assert [task for line in corpus.lists("task") for task in line] == missing
    state, log = corpus.wait(small_arrays, 120)
    assert state == "COMPLETED", log
    corpus.check_complete(small_arrays)
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.slow
def test_duplicates_are_resolved_when_all_is_scanned(small_arrays: Cluster, tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "corpus", files=12)
    corpus.prep(corpus.out, "--plan-only", "--deduplicate", "exact")
    corpus.launch(small_arrays, "--tasks-per-job", "3")
    (scan,), (resolve,), (tasks,) = corpus.ids("scan"), corpus.ids("resolve"), corpus.ids("task")
    small_arrays.run("scancel", f"{scan}_2")
    state, log = corpus.wait(small_arrays, 60)
    assert state == "FAILED", log
    assert list(unfinished_stages(corpus.out)["scan"]) == [3, 4, 5]
    assert small_arrays.job(resolve)["JobState"] == "FAILED"
    assert "3 tasks are not scanned" in corpus.log(resolve)
    assert not list((corpus.out / "prep" / "slurm").glob(f"{tasks}_*.log")), "tasks ran before their time"
    assert not small_arrays.run("squeue", "--noheader")

    printed = corpus.launch(small_arrays, "--tasks-per-job", "3")
    assert "array 1-1." in printed
    assert corpus.lists("scan") == [[3, 4, 5]]
    assert len(corpus.lists("task")) == 4
    state, log = corpus.wait(small_arrays, 60)
    assert state == "COMPLETED", log
    assert "duplicate" in log
    corpus.check_complete(small_arrays, "--deduplicate", "exact")
