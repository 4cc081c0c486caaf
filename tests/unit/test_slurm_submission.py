"""What is submitted to Slurm: the descriptions of jobs, seeds, containers, the hostfile, and sbatch's refusals."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.errors import UserError
from launchers.hostfile import format_hostfile
from launchers.slurm.attempt import Attempt
from launchers.slurm.client import submit
from launchers.slurm.job import read_job
from launchers.slurm.node import command, rank_of
from launchers.slurm.script import render
from launchers.slurm.script_template import sbatch_quote
from launchers.slurm.srun import on_nodes
from launchers.slurm.submission import Seeds, check_mounts
from pretrain.config import ContainerConfig, load_config
from pretrain.run_folder import RunFolder
from tests.support.slurm_jobs import NASTY, directives, submission


def test_job_is_read_back_and_handed_to_deepspeed_unchanged(tmp_path: Path) -> None:
    job = submission(tmp_path / NASTY, cpu=True, container={"image": "a", "mounts": ["/b"]}, bind="cores").jobs[0]
    job.write()
    assert read_job(job.path) == job
    attempt = Attempt(("n1", "n2"), Path("/shared/hostfile"), 12345)
    words = command(job, attempt, rank=1)
    assert words[0] == sys.executable, "of the container, where there is one"
    assert words[-4:] == ["--module", "launchers.slurm.bound", "--config", str(job.config)]
    assert words[words.index("--node_rank") + 1] == "1"
    assert words[words.index("--master_addr") + 1] == "n1"
    assert rank_of("n2", attempt) == 1
    with pytest.raises(UserError, match=r"n3 is not one of the nodes to train on \(n1, n2\)"):
        rank_of("n3", attempt)
    unbound = job.model_copy(update={"bind": "none"})
    assert command(unbound, attempt, rank=0)[-3] == "pretrain.train"


def test_what_is_no_job_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    for path in (tmp_path / "job.json", tmp_path / "none.json"):
        with pytest.raises(UserError, match="submit the run again"):
            read_job(path)


def test_a_job_that_waits_trains_what_was_submitted(tmp_path: Path) -> None:
    asked = submission(tmp_path / "run", environment={"A": "b"}, time="24:00:00", container={"image": "x"})
    asked.write(render(asked))
    assert load_config(asked.jobs[0].config) == asked.config


def test_percent_in_the_run_folder_is_not_a_pattern() -> None:
    assert submission("/shared/50%j").log == "/shared/50%%j/slurm/%j.log"


def test_a_request_to_stop_what_ran_before_is_no_request_to_stop_what_is_submitted(tmp_path: Path) -> None:
    """But one to stop what runs there now stays."""
    asked = submission(tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.create()
    for is_held in (True, False):
        folder.ask_to_stop()
        with folder.lock() if is_held else contextlib.nullcontext():
            asked.write("#!/bin/sh\n")
        assert folder.stop.exists() == is_held


def test_seeds_are_runs_of_their_own(tmp_path: Path) -> None:
    run = tmp_path / NASTY
    asked = submission(run, "3,5-6%2", cpu=True)
    script = render(asked)
    assert '#SBATCH --array="3,5-6%2"' in script
    assert directives(script)[1] == f"#SBATCH --comment={sbatch_quote('comment', f'maskwright:{run}/seed-%a')}"
    assert asked.log == f"{run}/seed-%a/slurm/%j.log".replace("100%", "100%%")
    assert asked.write(script) == run / "slurm" / "job.sh"
    for seed in (3, 5, 6):
        folder = run / f"seed-{seed}"
        job = read_job(folder / "slurm" / "job.json")
        trained = load_config(job.config)
        assert (job.run_dir, trained.run.dir, trained.run.seed) == (folder, folder, seed)
        assert trained.track.parent == run.name
        bash = script.splitlines()[-1].replace("exec ", "printf '%s\\0' ", 1)
        shown = subprocess.run(
            ["bash", "-c", bash], env={"SLURM_ARRAY_TASK_ID": str(seed)}, capture_output=True, check=True, text=True
        )
        assert shown.stdout.split("\0")[-2] == str(job.path)
    assert sorted(path.name for path in run.iterdir()) == ["seed-3", "seed-5", "seed-6", "slurm"]


@pytest.mark.parametrize(
    "text, values",
    [("0", (0,)), ("1,2,3", (1, 2, 3)), ("0-4", (0, 1, 2, 3, 4)), ("1,5-6%2", (1, 5, 6)), ("4-4", (4,))],
)
def test_seeds(text: str, values: tuple[int, ...]) -> None:
    assert Seeds.parse(text, 1001) == Seeds(text, values)


@pytest.mark.parametrize(
    "text", ["", "a", "1,", "-1", "1-", "1 2", "1%0", "1\n", "3,1-5", "5-1", "1,1", "10", "0-99999999999"]
)
def test_seeds_refused(text: str) -> None:
    with pytest.raises(UserError, match="--seeds"):
        Seeds.parse(text, 10)


def test_container_is_handed_to_srun() -> None:
    container = {
        "image": "nvcr.io#nvidia/pytorch:25.01-py3",
        "mounts": ["/shared", "/a:/b:ro"],
        "python": "/opt/python",
    }
    job = submission(container=container).jobs[0]
    assert on_nodes(job, "launchers.slurm.node", Path("/shared/here")) == [
        "--export=ALL",
        "--container-image=nvcr.io#nvidia/pytorch:25.01-py3",
        "--container-workdir=/shared/here",
        "--container-mounts=/shared,/a:/b:ro",
        "/opt/python",
        "-m",
        "launchers.slurm.node",
        str(job.path),
    ]
    bare = on_nodes(submission().jobs[0], "launchers.slurm.node", Path("/shared"))
    assert bare[:3] == ["--export=ALL", "/shared/venv/bin/python", "-m"]


def test_container_that_does_not_see_the_run_is_refused() -> None:
    container = ContainerConfig(image="x", mounts=["/shared:/shared", "/data", "/home/me:/root"])
    check_mounts(container, [Path("/shared/runs/x"), Path("/data")])
    for unseen in ("/sharedx", "/home/me/runs", "/root"):
        with pytest.raises(UserError, match=f"would not see {unseen}"):
            check_mounts(container, [Path(unseen)])


def test_hostfile() -> None:
    assert format_hostfile(["n1", "n2"], nodes=2, slots=8) == "n1 slots=8\nn2 slots=8\n"


@pytest.mark.parametrize("hosts", [[], ["n1"], ["n1", "n2", "n3"], ["n1", "n1"]])
def test_hostfile_with_another_number_of_nodes_is_refused(hosts: list[str]) -> None:
    with pytest.raises(UserError, match="nodes" if len(set(hosts)) == len(hosts) else "more than once"):
        format_hostfile(hosts, nodes=2, slots=1)


def test_no_sbatch_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="login node"):
        submit(tmp_path / "job.sh")


def test_a_refusal_by_sbatch_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"refused the job: invalid partition specified: x \("):
        submit(tmp_path / "job.sh")
