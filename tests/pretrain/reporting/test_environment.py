"""environment.json: hosts and their ranks, earlier starts, nothing secret."""

import json
import sys

import pytest

from pretrain.reporting import record_environment
from pretrain.reporting.environment import by_host, write_environment


def test_a_host_is_described_once_with_its_ranks():
    ranks = [{"host": "a", "gpus": ["x"]}, {"host": "a"}, {"host": "b"}, {"host": "b", "gpus": ["y"]}]
    assert by_host(ranks) == [
        {"host": "a", "ranks": [0, 1], "gpus": ["x"]},
        {"host": "b", "ranks": [2, 3], "gpus": ["y"]},
    ]


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
