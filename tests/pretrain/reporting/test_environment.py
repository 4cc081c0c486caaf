"""environment.json: hosts and their ranks, earlier starts, nothing secret; and messages of rank 0."""

import json
import sys
from types import SimpleNamespace

import pytest

from pretrain.reporting import Reports, record_environment
from pretrain.reporting.environment import by_host, write_environment
from pretrain.run import RunFolder
from tests.support.configs import least_config


def test_a_host_is_described_once_with_its_ranks():
    first, second = {"host": "a", "gpus": ["x"]}, {"host": "b", "gpus": ["y"]}
    ranks = [first, {"host": "a"}, {"host": "b"}, second]
    assert by_host(ranks) == [first | {"ranks": [0, 1]}, second | {"ranks": [2, 3]}]


def test_the_start_is_described_without_secrets(one_rank, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "x", "track.uri=http://me:hush@host"])
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hush")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    found = record_environment(tmp_path / "environment.json", 3, {"parameters": 5})
    text = (tmp_path / "environment.json").read_text()
    assert json.loads(text) == {"after_step": 3, **found, "earlier_starts": []}
    assert found["parameters"] == 5
    assert "hush" not in text
    assert found["command"].startswith("python -m x ")
    assert found["slurm"]["SLURM_JOB_ID"] == "17"
    assert found["processes"] == 1
    (host,) = found["hosts"]
    assert host["ranks"] == [0]
    assert host["threads"] >= host["cores"] >= 1
    assert host["memory_gb"] > 0
    assert host["processor"]


def test_earlier_starts_are_kept(tmp_path):
    path = tmp_path / "environment.json"
    for number in range(25):
        write_environment(path, {"processes": number}, number * 10)
    found = json.loads(path.read_text())
    assert (found["after_step"], found["processes"]) == (240, 24)
    assert [start["processes"] for start in found["earlier_starts"]] == [*range(23, 3, -1)]
    assert not any("earlier_starts" in start for start in found["earlier_starts"])


@pytest.mark.parametrize("content", ["{", "[]", '"x"'])
def test_a_damaged_record_is_replaced(tmp_path, content):
    path = tmp_path / "environment.json"
    path.write_text(content)
    write_environment(path, {"processes": 1}, 0)
    assert json.loads(path.read_text()) == {"after_step": 0, "processes": 1, "earlier_starts": []}


def test_the_step_of_a_status_is_that_of_the_last_step(tmp_path, capsys):
    """Checkpoints are reported later, rollbacks at the spike; after a rollback, step numbers are lower again."""
    track = {"uri": "none", "system_seconds": 0}
    config = least_config(run={"dir": tmp_path}, train={"steps": 40}, track=track)
    folder = RunFolder(tmp_path)
    environment = {"git_commit": None, "git_changes": False, "slurm": {}, "packages": {"maskwright": None}}
    environment |= {"processes": 1, "hosts": [], "parameters": 1}
    data = SimpleNamespace(fingerprint="0", datasets=())
    told = Reports(config, folder, 0, ["here"], data, None, 0, environment)
    batch, saved = {"rows": 8}, {"checkpoint/seconds": 1.0}
    told.report(21, {"train/loss": 9.0}, batch)
    told.report(16, saved, None)
    told.report(21, {"train/rollback_to": 16.0}, None)
    told.report(17, {"train/loss": 5.0}, batch)
    told.report(16, saved, None)
    folder.report.mkdir()  # so that the page cannot be written, which must not fail the run
    told.close("stopped", None)
    assert folder.read_status().step == 17
    assert "report.html was not written" in capsys.readouterr().err
