"""`maskwright study sweep --slurm` on a real Slurm cluster: an array of runs, one stop request, the report."""

import json
import os
from pathlib import Path

import pytest
import yaml

from tests.support import text_data
from tests.support.runs import status, wait_for
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.jobs import NASTY, START_SECONDS, completed, job_log, maskwright


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
    words = ["study", "sweep", tmp_path / "config.yaml", "--slurm", "--over", "masking.strategy=token,span"]

    def submit() -> str:
        return maskwright(cluster, *words, "--seeds", "1")

    assert ", array 1,2.\n" in submit()
    array, report = (study / "slurm/jobs").read_text().split()[1::2]
    with pytest.raises(AssertionError, match=f"Jobs {array} {report} of"):
        submit()
    last = study / "runs/strategy=span/seed-1"
    wait_for(lambda: (last / "status.json").exists() and status(last)["step"] > 0, 3 * START_SECONDS)
    cluster.run("scancel", "--batch", "--signal=USR1", f"{array}_2")
    for element in (1, 2):
        completed(cluster, study, f"{array}_{element}", 3 * START_SECONDS)
    assert "is queued again" in job_log(study, f"{array}_2")
    completed(cluster, study, report)
    found = json.loads((study / "report.json").read_text())
    assert not found["missing"]
    assert found["values"]["steps"]["strategy=token"] == {"1": 400}
    steps = [json.loads(line)["step"] for line in (last / "journal.jsonl").read_text().splitlines()]
    assert len({*steps}) == found["values"]["steps"]["strategy=span"]["1"]
    assert json.loads((last / "environment.json").read_text())["earlier_starts"]
    other = json.loads((study / "runs/strategy=token/seed-1/environment.json").read_text())
    assert other["earlier_starts"] == [], "the other one is not queued again"

    assert "Submitted run" not in submit()
    assert len((study / "slurm/jobs").read_text().splitlines()) == 1
    assert not list(tmp_path.rglob("pwned"))
    assert not os.path.exists("pwned")
