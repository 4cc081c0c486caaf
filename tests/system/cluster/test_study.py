"""`maskwright study masking --slurm` on a real Slurm cluster: an array of runs, one stop request, the report."""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from tests.support import text_data
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.test_slurm import PATH, ROOT, START_SECONDS, wait_for

NASTY = 'it\'s a $(touch pwned) "study" 100%A'


@pytest.mark.slow
def test_a_study_is_an_array_whose_elements_go_on_after_a_warning(cluster: Cluster, tmp_path: Path) -> None:
    """The report after the runs; an element that Slurm warns of its time limit saves and is queued
    again; a second submission while jobs wait is refused, and of a study that is done there is the report alone."""
    data, study = text_data.text_data(tmp_path), tmp_path / NASTY
    config = {
        "run": {"dir": str(study)},
        "data": {"train": str(data / "train"), "valid": str(data / "valid"), "seq_len": 64},
        "model": {"size": {"layers": 2, "hidden": 64, "heads": 2}},
        "train": {"steps": 400, "global_batch_size": 8, "precision": "fp32"},
        "track": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
        "cluster": {"cpu": True},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    words = [sys.executable, "-m", "launchers.cli", "study", "masking", tmp_path / "config.yaml", "--slurm"]
    words += ["--strategies", "token,span", "--rates", "0.15", "--seeds", "1"]

    def submit(check: bool = True) -> str:
        return cluster.run(*words, cwd=ROOT, check=check, OMP_NUM_THREADS="1", PATH=PATH)

    assert ", array 1,2.\n" in submit()
    array, report = (study / "slurm/jobs").read_text().split()[1::2]
    with pytest.raises(AssertionError, match=f"Jobs {array} {report} of"):
        submit()
    last = study / "runs/span-0.15/seed-1"
    wait_for(lambda: steps_done(last / "status.json") > 0, 3 * START_SECONDS)
    cluster.run("scancel", "--batch", "--signal=USR1", f"{array}_2")
    for element in (1, 2):
        name = f"{array}_{element}"
        assert cluster.wait(name, 3 * START_SECONDS) == "COMPLETED", log(study, name)
    assert "is queued again" in log(study, f"{array}_2")
    assert cluster.wait(report, START_SECONDS) == "COMPLETED", log(study, report)
    found = json.loads((study / "report.json").read_text())
    assert not found["missing"]
    assert found["values"]["steps"]["token-0.15"] == {"1": 400}
    steps = [json.loads(line)["step"] for line in (last / "journal.jsonl").read_text().splitlines()]
    assert len({*steps}) == found["values"]["steps"]["span-0.15"]["1"]
    assert json.loads((last / "environment.json").read_text())["earlier_starts"]
    other = json.loads((study / "runs/token-0.15/seed-1/environment.json").read_text())
    assert other["earlier_starts"] == [], "the other one is not queued again"

    assert "Submitted run" not in submit()
    assert len((study / "slurm/jobs").read_text().splitlines()) == 1
    assert not list(tmp_path.rglob("pwned"))
    assert not os.path.exists("pwned")


def steps_done(status: Path) -> int:
    return json.loads(status.read_text())["step"] if status.exists() else 0


def log(study: Path, job: str) -> str:
    return (study / "slurm" / f"{job}.log").read_text()
