"""Files that Slurm jobs leave for one another, damaged or hostile."""

import os
from pathlib import Path

import pytest

from data_prep.errors import UserError
from launchers.prep_array import STAGES
from launchers.sbatch import recorded_jobs

DEEP = "[" * 100_000 + "]" * 100_000
LONG = "9" * 5000


def test_recorded_jobs_are_those_that_a_submission_wrote(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("scan 17\nresolve 18\ntask 19\n")
    assert recorded_jobs(tmp_path / "jobs", STAGES) == ["17", "18", "19"]
    assert recorded_jobs(tmp_path / "none", STAGES) == []


@pytest.mark.parametrize("text", ["scan 17\nx\n", "scan --all\n", f"scan {LONG}\n", DEEP, "scan 1\0\n", "pipe"])
def test_damaged_recorded_jobs_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "jobs"
    os.mkfifo(path) if text == "pipe" else path.write_text(text)
    with pytest.raises(UserError, match="see in `squeue` whether") as refused:
        recorded_jobs(path, STAGES)
    assert len(str(refused.value)) <= 300
