"""Damaged or hostile files that Slurm jobs exchange."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from data_prep.common.errors import UserError
from launchers.slurm.job_chain import recorded_jobs
from launchers.slurm.launch_attempt import AttemptStatus
from launchers.slurm.requeue_decision import Failure, LaunchHistory
from launchers.slurm.supervisor import read_history
from pretrain.run import RunFolder
from tests.support.hostile_json import DIGITS, NESTED


def test_recorded_jobs_are_those_that_a_submission_wrote(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("scan 17\nresolve 18\ntask 19\n")
    assert recorded_jobs(tmp_path / "jobs") == ["17", "18", "19"]
    assert recorded_jobs(tmp_path / "none") == []


def _damage(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path) if text == "pipe" else path.write_text(text)


@pytest.mark.parametrize("text", ["scan 17\nX\n", "scan --all\n", f"scan {DIGITS}\n", NESTED, "scan 1\0\n", "pipe"])
def test_damaged_recorded_jobs_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "jobs"
    _damage(path, text)
    with pytest.raises(UserError, match="see in `squeue` whether") as refused:
        recorded_jobs(path)
    assert len(str(refused.value)) <= 300


DAMAGED = ["pipe", "", NESTED, DIGITS, "null", '{"a": 1, "a": 2}', f'{{"job_id": {DIGITS}}}', '{"job_id": NaN}']


@pytest.mark.parametrize("text", DAMAGED, ids=lambda text: text[:20])
def test_a_damaged_record_counts_anew(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "supervisor.json"
    _damage(path, text)
    assert read_history(path, 7) == LaunchHistory(7)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_record_with_a_wrong_or_missing_value_counts_anew(tmp_path: Path, capsys) -> None:
    whole = asdict(LaunchHistory(7, 40, 2, 1, Failure(3, "x")))
    wrong: dict[str, Any] = {"step": "3", "reason": 7}
    changes = ({"restarts": "3"}, {"restarts": True}, {"restarts": -5}, {"failure": wrong})
    without = {name: value for name, value in whole.items() if name != "requeues"}
    for record in (*(whole | change for change in changes), without):
        (tmp_path / "supervisor.json").write_text(json.dumps(record))
        assert read_history(tmp_path / "supervisor.json", 7) == LaunchHistory(7), record
    assert "it has no requeues. Counting restarts from 0." in capsys.readouterr().out


@pytest.mark.parametrize("text", [*DAMAGED, '{"reason": ["x"], "retry": false}', '{"reason": "x", "retry": "no"}'])
def test_a_damaged_refusal_is_no_refusal(tmp_path: Path, text: str) -> None:
    attempt = AttemptStatus(RunFolder(tmp_path), tmp_path / "refusal.json")
    _damage(tmp_path / "refusal.json", text)
    refusal = attempt.refusal(1)
    assert (refusal.reason, refusal.retry) == ("training did not start (srun exit code 1)", True)
