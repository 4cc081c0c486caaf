"""Submission to Slurm: descriptions of jobs, containers, ranks, and sbatch's refusals."""

import contextlib
import os
import sys
from pathlib import Path

import pytest

from data_prep.common.errors import UserError
from launchers.slurm import node_entry
from launchers.slurm.client import submit
from launchers.slurm.launch_attempt import HOSTS_VARIABLE, PORT_VARIABLE, python_command, train_command
from launchers.slurm.submission import check_mounts, render, write
from pretrain.config_files import load_config
from pretrain.run import RunFolder
from tests.support.slurm_jobs import NASTY, directives, program, submission


def test_a_job_reads_the_config_that_was_submitted(tmp_path: Path) -> None:
    asked = submission(tmp_path / NASTY, cpu=True, container={"image": "a", "mounts": ["/b"]})
    write(asked)
    assert load_config(tmp_path / NASTY / "slurm" / "config.yaml") == asked
    with pytest.raises(UserError, match="No config file"):
        load_config(tmp_path / "config.yaml")


def test_srun_starts_a_task_for_each_rank() -> None:
    words = train_command(submission(), ["n1", "n3"])
    asked = ["--nodelist=n1,n3", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=3"]
    assert words[0] == "srun"
    assert set(asked) <= set(words)


@pytest.mark.parametrize(("host", "local", "rank"), [("n1", 1, 1), ("n3", 0, 4), ("n3", 3, 7)])
def test_a_task_becomes_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, local: int, rank: int
) -> None:
    write(submission(tmp_path, interface="ib0"))
    config = str(RunFolder(tmp_path).job_config)
    variables = {"SLURMD_NODENAME": host, "SLURM_LOCALID": str(local), HOSTS_VARIABLE: "n1 n3", PORT_VARIABLE: "12007"}
    monkeypatch.setattr(os, "environ", os.environ | variables)
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, words: started.append(words))
    node_entry.main([config])
    assert started == [[sys.executable, "-m", "pretrain.train", "--config", config]]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT", "NCCL_SOCKET_IFNAME")
    assert [os.environ[name] for name in names] == [str(rank), str(local), "8", "4", "n1", "12007", "ib0"]


def test_percent_in_the_run_folder_is_not_a_pattern() -> None:
    assert '#SBATCH --output="/shared/50%%j/slurm/%j.log"' in directives(render(submission("/shared/50%j")))


def test_a_request_to_stop_what_ran_before_is_no_request_to_stop_what_is_submitted(tmp_path: Path) -> None:
    """But one to stop what runs there now stays."""
    asked = submission(tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.create()
    for is_held in (True, False):
        folder.ask_to_stop()
        with folder.lock() if is_held else contextlib.nullcontext():
            write(asked)
        assert folder.stop.exists() == is_held


def test_container_is_handed_to_srun() -> None:
    container = {
        "image": "nvcr.io#nvidia/pytorch:25.01-py3",
        "mounts": ["/shared", "/a:/b:ro"],
        "python": "/opt/python",
    }
    config = submission(container=container)
    assert python_command(config, "launchers.slurm.node_entry", Path("/shared/here")) == [
        "--export=ALL",
        "--container-image=nvcr.io#nvidia/pytorch:25.01-py3",
        "--container-workdir=/shared/here",
        "--container-mounts=/shared,/a:/b:ro",
        "/opt/python",
        "-m",
        "launchers.slurm.node_entry",
        str(RunFolder(config.run.dir).job_config),
    ]
    bare = python_command(submission(), "launchers.slurm.node_entry", Path("/shared"))
    assert bare[:3] == ["--export=ALL", sys.executable, "-m"]


def test_container_that_does_not_see_the_run_is_refused() -> None:
    mounts = ["/shared:/shared", "/data", "/home/me:/root"]
    check_mounts(mounts, [Path("/shared/runs/x"), Path("/data")])
    for unseen in ("/sharedx", "/home/me/runs", "/root"):
        with pytest.raises(UserError, match=f"cannot access {unseen}"):
            check_mounts(mounts, [Path(unseen)])


def test_a_refusal_by_sbatch_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="login node"):
        submit(tmp_path / "job.sh")
    program(tmp_path, "sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2\nexit 1")
    with pytest.raises(UserError, match=r"refused the job: invalid partition specified: x \("):
        submit(tmp_path / "job.sh")
