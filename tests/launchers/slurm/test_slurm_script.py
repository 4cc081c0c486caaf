"""Submission to Slurm: resources, quoting and time limits of the job script; containers, ranks, refusals."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_prep.common.errors import UserError
from data_prep.common.processes import module_command
from launchers.slurm import node_entry
from launchers.slurm.batch_script import check_time_limit, sbatch_quote
from launchers.slurm.client import submit
from launchers.slurm.launch_attempt import HOSTS_VARIABLE, PORT_VARIABLE, python_command, train_command
from launchers.slurm.submission import check_mounts, render, write
from pretrain.config_files import load_config
from pretrain.run import RunFolder
from tests.support.slurm_jobs import NASTY, directives, printing_python, program, submission


def test_directives_ask_for_what_was_asked() -> None:
    asked = {"partition": "gpu", "account": "1234", "qos": "long", "constraint": "a100|h100", "reservation": "ours"}
    options = ["--mail-type=END", "--hold", '--gres=gpu:h100:4,"x"']
    more = {"time": "1-00:00:00", "mem": "64G", "exclusive": True, "signal_seconds": 300, "spare_nodes": 1}
    wanted = [
        *('job-name="x"', 'comment="maskwright:/shared/runs/x"', 'output="/shared/runs/x/slurm/%j.log"', 'nodes="3"'),
        *('ntasks-per-node="4"', 'cpus-per-task="3"', 'gres="gpu:4"', 'mem="64G"', 'partition="gpu"', 'account="1234"'),
        *('qos="long"', 'constraint="a100|h100"', 'reservation="ours"', 'time="1-00:00:00"', 'signal="B:USR1@300"'),
        *('open-mode="append"', "requeue", "exclusive", "no-kill"),
        *('mail-type="END"', "hold", 'gres="gpu:h100:4,\\"x\\""'),
    ]
    assert directives(render(submission(**asked, **more, options=options))) == [f"#SBATCH --{line}" for line in wanted]
    lines = directives(render(submission(requeue=False)))
    assert "#SBATCH --no-requeue" in lines
    assert "#SBATCH --requeue" not in lines
    of_percent = directives(render(submission("/shared/50%j")))
    assert '#SBATCH --output="/shared/50%%j/slurm/%j.log"' in of_percent, "it is no pattern"


def test_cpu_job_asks_for_no_gpu() -> None:
    script = render(submission(cpu=True, cpus_per_process=None))
    assert not [line for line in directives(script) if "gres" in line or "gpu" in line]
    assert '#SBATCH --cpus-per-task="1"' in script
    assert "export DS_ACCELERATOR=cpu" in script


def environment_and_arguments(script: str, **environment: str) -> tuple[dict[str, str], list[str]]:
    """The arguments and environment that a script gives to its Python, here a shell script that prints both."""
    variables = os.environ | environment
    result = subprocess.run(["bash", "-c", script], cwd="/", env=variables, capture_output=True, check=True)
    assert not result.stderr
    words = result.stdout.decode().split("\0")[:-1]
    split = words.index("--")
    return dict(word.split("=", 1) for word in words[split + 1 :]), words[:split]


def test_values_reach_the_shell_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printing_python(tmp_path / NASTY, monkeypatch)
    asked = submission(Path("/shared", NASTY), environment={"A": NASTY, "B": ""}, setup='export C="${HOME}!"')
    environment, words = environment_and_arguments(render(asked), HOME="/home/me", OMP_NUM_THREADS="")
    command = module_command("launchers.slurm.supervisor", str(RunFolder(asked.run.dir).job_config))
    assert words == [str(tmp_path / NASTY), *command[1:]]
    assert (environment["A"], environment["B"], environment["C"]) == (NASTY, "", "/home/me!")
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["PATH"].startswith(f"{tmp_path / NASTY / 'bin'}:")


def test_modules_are_loaded_before_the_setup_and_a_failure_ends_the_job(tmp_path, monkeypatch):
    module = 'module() { echo "module $*"; [ "$*" != "load missing" ]; }\nexport -f module\n'
    (tmp_path / "modules.sh").write_text(module)
    printing_python(tmp_path / "here", monkeypatch)

    def run(**cluster: Any) -> subprocess.CompletedProcess[str]:
        shell = f"source {tmp_path}/modules.sh\n{render(submission(**cluster))}"
        return subprocess.run(["bash", "-c", shell], capture_output=True, text=True)

    done = run(modules=["cuda/12.4", "it's"], setup="echo unset: $UNSET_HERE\necho second")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("module load cuda/12.4 it's\nunset:\nsecond\n")
    for broken in (run(modules=["missing"]), run(setup="false\necho went on")):
        assert broken.returncode == 1
        assert "supervise" not in broken.stdout
        assert "went on" not in broken.stdout


def test_sbatch_values_are_quoted_by_sbatch_rules_or_refused() -> None:
    assert sbatch_quote("job-name", 'a "b" \\ c # d') == '"a \\"b\\" \\\\ c # d"'
    for name, value in (("job-name", "a\n#SBATCH --wrap=x"), ("partition", ""), ("output", "a\\b")):
        with pytest.raises(UserError, match=name):
            sbatch_quote(name, value)


@pytest.mark.parametrize("text", ["4", "4:59", "0:4:59", "0-0:4", "soon", "1h", "-5", "1-2:3:4:5", "5\n", "1:2:3:4"])
def test_time_limits_refused(text: str) -> None:
    with pytest.raises(UserError, match="--time"):
        check_time_limit(text, 120)


def test_time_limits_are_longer_than_the_warning() -> None:
    for text in ("5", "05:00", "00:05:00", "0", "1-0", "1-00:00", "0-1:00:00", "24:00:00"):
        check_time_limit(text, 120)
    check_time_limit("10", 420)
    with pytest.raises(UserError, match="Slurm asks the job to stop 421 s before its end: give it at least 11 minutes"):
        check_time_limit("10", 421)


def test_a_job_reads_the_config_that_was_submitted(tmp_path: Path) -> None:
    asked = submission(tmp_path / NASTY, cpu=True, container={"image": "a", "mounts": ["/b"]})
    write(asked)
    assert load_config(tmp_path / NASTY / "slurm" / "config.yaml") == asked
    with pytest.raises(UserError, match="No config file"):
        load_config(tmp_path / "config.yaml")


@pytest.mark.parametrize(("host", "local", "rank"), [("n1", 1, 1), ("n3", 0, 4), ("n3", 3, 7)])
def test_srun_starts_a_task_for_each_rank_which_becomes_it(tmp_path, monkeypatch, host, local, rank):
    words = train_command(submission(), ["n1", "n3"])
    asked = ["--nodelist=n1,n3", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=3"]
    assert words[0] == "srun"
    assert set(asked) <= set(words)
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
    image = "nvcr.io#nvidia/pytorch:25.01-py3"
    config = submission(container={"image": image, "mounts": ["/shared", "/a:/b:ro"], "python": "/opt/python"})
    options = [f"--container-image={image}", "--container-workdir=/shared/here", "--container-mounts=/shared,/a:/b:ro"]
    python = ["/opt/python", "-m", "launchers.slurm.node_entry", str(RunFolder(config.run.dir).job_config)]
    words = python_command(config, "launchers.slurm.node_entry", Path("/shared/here"))
    assert words == ["--export=ALL", *options, *python]
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
