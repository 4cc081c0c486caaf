"""The Slurm job script: quoting, the hostfile, and what is refused before anything is submitted."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from data_prep.errors import UserError
from launchers.hostfile import format_hostfile
from launchers.sbatch import sbatch_quote, submit
from launchers.slurm.attempt import Attempt
from launchers.slurm.job import Job, read_job
from launchers.slurm.node import command
from launchers.slurm.script import Batch, check_time_limit, log_of, render
from tests.datasets import make_dataset

ROOT = Path(__file__).resolve().parents[2]
NASTY = 'it\'s a $(touch pwned) `touch pwned` "b" * 100% é;'
JOB = Job(
    config=Path("/shared/run.yaml"),
    overrides=("train.steps=5",),
    run_dir=Path("/shared/runs/x"),
    python=Path("/shared/venv/bin/python"),
    nodes=2,
    processes_per_node=4,
    cpus_per_process=3,
    cpu=False,
)
BATCH = Batch(working_dir=Path("/shared"), job_name="x")


def directives(script: str) -> list[str]:
    return [line for line in script.splitlines() if line.startswith("#SBATCH")]


def test_directives_ask_for_what_was_asked() -> None:
    batch = dataclasses.replace(BATCH, partition="gpu", account="me", time="1-00:00:00", output="log-%j.txt")
    assert directives(render(JOB, batch)) == [
        '#SBATCH --job-name="x"',
        '#SBATCH --output="log-%j.txt"',
        '#SBATCH --gres="gpu:4"',
        '#SBATCH --partition="gpu"',
        '#SBATCH --account="me"',
        '#SBATCH --time="1-00:00:00"',
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=12",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --signal=B:USR1@120",
    ]


def test_cpu_job_asks_for_no_gpu() -> None:
    script = render(JOB.model_copy(update={"cpu": True}), BATCH)
    assert not [line for line in directives(script) if "gres" in line or "gpu" in line]
    assert "export DS_ACCELERATOR=cpu" in script


def test_values_reach_the_shell_unchanged(tmp_path: Path) -> None:
    python = tmp_path / NASTY / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s\\0" "$PWD" "$@"\n')
    python.chmod(0o755)
    job = JOB.model_copy(update={"run_dir": Path("/shared", NASTY), "python": python})
    batch = dataclasses.replace(BATCH, working_dir=tmp_path / NASTY)
    printed = subprocess.run(["bash", "-c", render(job, batch)], cwd="/", capture_output=True, text=True, check=True)
    expected = [tmp_path / NASTY, "-m", "launchers.slurm.supervise", job.path]
    assert printed.stdout.split("\0")[:-1] == [str(value) for value in expected]
    assert not printed.stderr


def test_job_is_read_back_and_handed_to_deepspeed_unchanged(tmp_path: Path) -> None:
    overrides = (f"track.experiment={NASTY}", "run.seed=1")
    changes = {"config": Path("/shared", NASTY, "a\nb.yaml"), "run_dir": tmp_path, "overrides": overrides}
    job = JOB.model_copy(update=changes)
    job.write()
    assert read_job(job.path) == job
    words = command(job, Attempt(("n1", "n2"), Path("/shared/hostfile"), 12345), rank=1)
    assert words[-5:] == ["pretrain.train", "--config", str(job.config), *overrides]
    assert words[words.index("--node_rank") + 1] == "1"
    assert words[words.index("--master_addr") + 1] == "n1"


def test_what_is_no_job_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    for path in (tmp_path / "job.json", tmp_path / "none.json"):
        with pytest.raises(UserError, match="not a job's description"):
            read_job(path)


def test_script_is_valid_bash() -> None:
    assert "@{" not in render(JOB, BATCH)
    subprocess.run(["bash", "-n"], input=render(JOB, BATCH), text=True, check=True)


def test_percent_in_the_run_folder_is_not_a_pattern() -> None:
    job = JOB.model_copy(update={"run_dir": Path("/shared/50%j")})
    assert log_of(job, BATCH) == "/shared/50%%j/slurm/%j.log"


def test_sbatch_values_are_quoted_by_sbatch_rules() -> None:
    assert sbatch_quote("job-name", 'a "b" \\ c # d') == '"a \\"b\\" \\\\ c # d"'


@pytest.mark.parametrize("name, value", [("job-name", "a\n#SBATCH --wrap=x"), ("partition", ""), ("output", "a\\b")])
def test_what_sbatch_cannot_read_is_refused(name: str, value: str) -> None:
    with pytest.raises(UserError, match=name):
        sbatch_quote(name, value)


@pytest.mark.parametrize("text", ["5", "05:00", "00:05:00", "0", "1-0", "1-00:00", "0-1:00:00", "24:00:00"])
def test_time_limits(text: str) -> None:
    check_time_limit(text)


@pytest.mark.parametrize("text", ["4", "4:59", "0:4:59", "0-0:4", "soon", "1h", "-5", "1-2:3:4:5", "5\n", "1:2:3:4"])
def test_time_limits_refused(text: str) -> None:
    with pytest.raises(UserError, match="--time"):
        check_time_limit(text)


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


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config whose run folder is tmp_path/run and whose global batch is 32 rows."""
    make_dataset(tmp_path / "data", [range(5, 50)] * 40)
    path = tmp_path / "run.yaml"
    values = {"run": {"dir": str(tmp_path / "run")}, "data": {"train": str(tmp_path / "data")}, "train": {"steps": 3}}
    path.write_text(yaml.safe_dump(values))
    return path


def launch(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launchers.cli", "launch", "slurm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PATH": "/nowhere"})


def test_dry_run_prints_the_script_and_writes_nothing(config: Path) -> None:
    result = launch(config, "--nodes", "2", "--gpus-per-node", "8", "--dry-run", "run.seed=9")
    assert result.returncode == 0, result.stderr
    assert "#SBATCH --nodes=2" in result.stdout
    assert "#SBATCH --cpus-per-task=32" in result.stdout
    assert not (config.parent / "run").exists()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["train.stpes=5"], "steps"),
        (["data.train=/nowhere"], "/nowhere"),
        (["--nodes", "3"], "global_batch_size"),
        (["--time", "soon"], "--time"),
        (["--job-name", "a\nb"], "job-name"),
    ],
)
def test_bad_input_is_one_sentence_and_submits_nothing(config: Path, arguments: list[str], words: str) -> None:
    result = launch(config, *arguments)
    assert result.returncode == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (config.parent / "run").exists()
