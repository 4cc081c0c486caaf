"""The Slurm job script: resources, quoting, and time limits."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from data_prep.common.errors import UserError
from data_prep.common.processes import module_command
from launchers.slurm.batch_script import check_time_limit, sbatch_quote
from launchers.slurm.submission import render
from pretrain.run import RunFolder
from tests.support.slurm_jobs import NASTY, directives, printing_python, submission


def test_directives_ask_for_what_was_asked() -> None:
    asked = submission(
        partition="gpu",
        account="1234",
        qos="long",
        constraint="a100|h100",
        reservation="ours",
        time="1-00:00:00",
        mem="64G",
        exclusive=True,
        signal_seconds=300,
        spare_nodes=1,
        options=["--mail-type=END", "--hold", '--gres=gpu:h100:4,"x"'],
    )
    assert directives(render(asked)) == [
        '#SBATCH --job-name="x"',
        '#SBATCH --comment="maskwright:/shared/runs/x"',
        '#SBATCH --output="/shared/runs/x/slurm/%j.log"',
        '#SBATCH --nodes="3"',
        '#SBATCH --ntasks-per-node="4"',
        '#SBATCH --cpus-per-task="3"',
        '#SBATCH --gres="gpu:4"',
        '#SBATCH --mem="64G"',
        '#SBATCH --partition="gpu"',
        '#SBATCH --account="1234"',
        '#SBATCH --qos="long"',
        '#SBATCH --constraint="a100|h100"',
        '#SBATCH --reservation="ours"',
        '#SBATCH --time="1-00:00:00"',
        '#SBATCH --signal="B:USR1@300"',
        '#SBATCH --open-mode="append"',
        "#SBATCH --requeue",
        "#SBATCH --exclusive",
        "#SBATCH --no-kill",
        '#SBATCH --mail-type="END"',
        "#SBATCH --hold",
        '#SBATCH --gres="gpu:h100:4,\\"x\\""',
    ]


def test_a_job_that_is_not_to_be_queued_again() -> None:
    lines = directives(render(submission(requeue=False)))
    assert "#SBATCH --no-requeue" in lines
    assert "#SBATCH --requeue" not in lines


def test_cpu_job_asks_for_no_gpu() -> None:
    script = render(submission(cpu=True, cpus_per_process=None))
    assert not [line for line in directives(script) if "gres" in line or "gpu" in line]
    assert '#SBATCH --cpus-per-task="1"' in script
    assert "export DS_ACCELERATOR=cpu" in script


def environment_and_arguments(script: str, **environment: str) -> tuple[dict[str, str], list[str]]:
    """The arguments and environment that a script gives to its Python, here a shell script that prints both."""
    result = subprocess.run(
        ["bash", "-c", script], cwd="/", env=os.environ | environment, capture_output=True, check=True
    )
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


def test_modules_are_loaded_before_the_setup_and_a_failure_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "modules.sh").write_text(
        'module() { echo "module $*"; [ "$*" != \'load missing\' ]; }\nexport -f module\n'
    )
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


def test_sbatch_values_are_quoted_by_sbatch_rules() -> None:
    assert sbatch_quote("job-name", 'a "b" \\ c # d') == '"a \\"b\\" \\\\ c # d"'


@pytest.mark.parametrize("name, value", [("job-name", "a\n#SBATCH --wrap=x"), ("partition", ""), ("output", "a\\b")])
def test_what_sbatch_cannot_read_is_refused(name: str, value: str) -> None:
    with pytest.raises(UserError, match=name):
        sbatch_quote(name, value)


@pytest.mark.parametrize("text", ["5", "05:00", "00:05:00", "0", "1-0", "1-00:00", "0-1:00:00", "24:00:00"])
def test_time_limits(text: str) -> None:
    check_time_limit(text, 120)


@pytest.mark.parametrize("text", ["4", "4:59", "0:4:59", "0-0:4", "soon", "1h", "-5", "1-2:3:4:5", "5\n", "1:2:3:4"])
def test_time_limits_refused(text: str) -> None:
    with pytest.raises(UserError, match="--time"):
        check_time_limit(text, 120)


def test_time_limit_must_be_longer_than_the_warning() -> None:
    check_time_limit("10", 420)
    with pytest.raises(UserError, match="Slurm asks the job to stop 421 s before its end: give it at least 11 minutes"):
        check_time_limit("10", 421)
