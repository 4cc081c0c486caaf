"""The Slurm job script: quoting, templates, the hostfile, and what is refused before anything is submitted."""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from data_prep.errors import UserError
from launchers.app import app
from launchers.hostfile import format_hostfile
from launchers.sbatch import sbatch_quote, submit
from launchers.slurm.attempt import Attempt
from launchers.slurm.job import read_job
from launchers.slurm.node import command, rank_of
from launchers.slurm.script import PLACEHOLDERS, check_time_limit, read_template, render
from launchers.slurm.seeds import Seeds
from launchers.slurm.step import on_nodes
from launchers.slurm.submission import Submission, check_mounts
from pretrain.config import Config, ContainerConfig, load_config
from pretrain.run_folder import RunFolder
from tests.datasets import make_dataset

ROOT = Path(__file__).resolve().parents[2]
NASTY = 'it\'s a $(touch pwned) `touch pwned` "b" * 100% é;'


def submission(run_dir: str | Path = "/shared/runs/x", seeds: str | None = None, **cluster: Any) -> Submission:
    """On two nodes of four GPUs each, three cores a process, unless `cluster` says otherwise."""
    section = {"nodes": 2, "gpus_per_node": 4, "cpus_per_process": 3} | cluster
    config = {"run": {"dir": run_dir}, "data": {"train": "data"}, "train": {"steps": 5}, "cluster": section}
    array = Seeds.parse(seeds, 1001) if seeds else None
    return Submission(Config.model_validate(config), Path("/shared"), Path("/shared/venv/bin/python"), array)


def directives(script: str) -> list[str]:
    return [line for line in script.splitlines() if line.startswith("#SBATCH")]


def test_directives_ask_for_what_was_asked() -> None:
    asked = submission(
        partition="gpu",
        account=1234,
        qos="long",
        constraint="a100|h100",
        reservation="ours",
        time="1-00:00:00",
        mem="64G",
        exclusive=True,
        output="log-%j.txt",
        signal_seconds=300,
        spare_nodes=1,
        options=["--mail-type=END", "--hold", '--gres=gpu:h100:4,"x"'],
    )
    assert directives(render(asked)) == [
        '#SBATCH --job-name="x"',
        '#SBATCH --comment="maskwright:/shared/runs/x"',
        '#SBATCH --output="log-%j.txt"',
        '#SBATCH --nodes="3"',
        '#SBATCH --ntasks-per-node="1"',
        '#SBATCH --cpus-per-task="12"',
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
    assert submission(requeue=False).jobs[0].requeue is False


def test_cpu_job_asks_for_no_gpu() -> None:
    script = render(submission(cpu=True, cpus_per_process=None))
    assert not [line for line in directives(script) if "gres" in line or "gpu" in line]
    assert '#SBATCH --cpus-per-task="4"' in script
    assert "export DS_ACCELERATOR=cpu" in script


def environment_and_arguments(script: str, **environment: str) -> tuple[dict[str, str], list[str]]:
    """What a script hands to the Python that it becomes, which must be a shell script that prints both."""
    result = subprocess.run(
        ["bash", "-c", script], cwd="/", env=os.environ | environment, capture_output=True, check=True
    )
    assert not result.stderr
    words = result.stdout.decode().split("\0")[:-1]
    split = words.index("--")
    return dict(word.split("=", 1) for word in words[split + 1 :]), words[:split]


def printing_python(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "python").write_text('#!/bin/sh\nprintf "%s\\0" "$PWD" "$@" --\nexec env --null\n')
    (folder / "python").chmod(0o755)
    return folder / "python"


def test_values_reach_the_shell_unchanged(tmp_path: Path) -> None:
    python = printing_python(tmp_path / NASTY / "bin")
    asked = submission(Path("/shared", NASTY), environment={"A": NASTY, "B": ""}, setup='export C="${HOME}!"')
    asked = dataclasses.replace(asked, python=python, working_dir=tmp_path / NASTY)
    environment, words = environment_and_arguments(render(asked), HOME="/home/me", OMP_NUM_THREADS="")
    expected = [tmp_path / NASTY, "-m", "launchers.slurm.supervise", asked.jobs[0].path]
    assert words == [str(value) for value in expected]
    assert (environment["A"], environment["B"], environment["C"]) == (NASTY, "", "/home/me!")
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["PATH"].startswith(f"{python.parent}:")


printable = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1, max_size=20)
names = printable.filter(lambda text: not {"/", "\\"} & {*text} and text not in (".", ".."))


@settings(max_examples=15, deadline=None)
@given(run=names, value=printable)
def test_any_printable_text_reaches_the_shell_unchanged(tmp_path_factory: Any, run: str, value: str) -> None:
    python = printing_python(tmp_path_factory.getbasetemp() / "printing")
    for seeds in (None, "7"):
        asked = submission(Path("/shared", run), seeds, environment={"A": value})
        asked = dataclasses.replace(asked, python=python, working_dir=python.parent)
        environment, words = environment_and_arguments(render(asked), SLURM_ARRAY_TASK_ID="7")
        assert words[-1] == str(asked.jobs[0].path)
        assert environment["A"] == value


def test_modules_are_loaded_before_the_setup_and_a_failure_ends_the_job(tmp_path: Path) -> None:
    (tmp_path / "modules.sh").write_text(
        'module() { echo "module $*"; [ "$*" != \'load missing\' ]; }\nexport -f module\n'
    )
    python = printing_python(tmp_path)

    def run(**cluster: Any) -> subprocess.CompletedProcess[str]:
        asked = dataclasses.replace(submission(**cluster), python=python, working_dir=tmp_path)
        shell = f"source {tmp_path}/modules.sh\n{render(asked)}"
        return subprocess.run(["bash", "-c", shell], capture_output=True, text=True)

    done = run(modules=["cuda/12.4", "it's"], setup="echo unset: $UNSET_HERE\necho second")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("module load cuda/12.4 it's\nunset:\nsecond\n")
    for broken in (run(modules=["missing"]), run(setup="false\necho went on")):
        assert broken.returncode == 1
        assert "supervise" not in broken.stdout
        assert "went on" not in broken.stdout


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
        with pytest.raises(UserError, match="not a job's description"):
            read_job(path)


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


def test_script_is_valid_bash() -> None:
    assert "@{" not in render(submission())
    subprocess.run(["bash", "-n"], input=render(submission()), text=True, check=True)


OWN = "#!/bin/bash -l\n# ours: a@@b\n\n@{directives}\n@{setup}\ncd @{working_dir}\n@{environment}\n@{supervisor}\n"


def test_own_template(tmp_path: Path) -> None:
    path = tmp_path / "ours.sh"
    path.write_text(OWN)
    script = render(submission(template=path))
    assert script.startswith("#!/bin/bash -l\n# ours: a@b\n\n#SBATCH --job-name")
    assert directives(script) == directives(render(submission()))
    assert script.splitlines()[-1].endswith("-m launchers.slurm.supervise /shared/runs/x/slurm/job.json")


@pytest.mark.parametrize(
    "text, words",
    [
        (OWN.replace("@{setup}", "@{setups}"), "@{setups} is no placeholder"),
        (OWN + "@nodes", "@{nodes} is no placeholder"),
        (OWN + "me@ home", "written @@"),
        (OWN.replace("@{directives}\n", "hostname\n@{directives}\n"), "first command"),
        (OWN.replace("#!/bin/bash -l\n", ""), "first line"),
        *[(OWN.replace(f"@{{{name}}}", ""), f"lacks @{{{name}}}") for name in PLACEHOLDERS],
        (None, "cannot be read"),
    ],
)
def test_what_is_no_template_is_one_sentence(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "ours.sh"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_template(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_a_job_that_waits_trains_what_was_submitted(tmp_path: Path) -> None:
    asked = submission(tmp_path / "run", environment={"A": "b"}, time="24:00:00", container={"image": "x"})
    asked.write(render(asked))
    assert load_config(asked.jobs[0].config) == asked.config


def test_percent_in_the_run_folder_is_not_a_pattern() -> None:
    assert submission("/shared/50%j").log == "/shared/50%%j/slurm/%j.log"


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
    with pytest.raises(UserError, match="told to save and stop 421 s before its end: give it at least 11 minutes"):
        check_time_limit("10", 421)


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


def launch(*arguments: str | Path, environment: dict[str, str] | None = None) -> str:
    """What the command prints; raises what it raises. There is no sbatch."""
    words = ["launch", "slurm", *map(str, arguments)]
    result = CliRunner().invoke(app, words, env={"PATH": "/nowhere"} | (environment or {}))
    if result.exception:
        raise result.exception
    return result.output


def test_dry_run_prints_what_would_be_submitted_and_writes_nothing(config: Path) -> None:
    printed = launch(config, "--nodes", "2", "--gpus-per-node", "8", "--seeds", "4,9", "--dry-run", "run.seed=3")
    script, *jobs = re.split(r"\n# (?=/.*/job.json\n)", printed)
    assert '#SBATCH --nodes="2"' in script
    assert '#SBATCH --cpus-per-task="32"' in script
    assert '#SBATCH --array="4,9"' in script
    for seed, text in zip((4, 9), jobs, strict=True):
        path, _, described = text.partition("\n")
        job = json.loads(described)
        assert path == f"{job['run_dir']}/slurm/job.json"
        assert job["run_dir"] == str(config.parent / "run" / f"seed-{seed}")
        assert (job["nodes"], job["processes_per_node"]) == (2, 8)
    assert sorted(path.name for path in config.parent.iterdir()) == ["data", "run.yaml"]


def test_options_win_over_the_config_and_it_over_the_profile(config: Path, tmp_path: Path) -> None:
    values = yaml.safe_load(config.read_text())
    values["cluster"] = {"partition": "b", "qos": "b", "environment": {"X": "b", "Y": "b"}, "modules": ["b"]}
    config.write_text(yaml.safe_dump(values))
    profile = tmp_path / "site.yaml"
    profile.write_text(
        "{partition: a, qos: a, account: a, time: 24:00:00, environment: {X: a, Z: a}, modules: [a, c], "
        "container: {image: a, mounts: [/]}}"
    )
    more = ["--partition", "c", "--env", "Y=c d", "--container-python", "py", "--no-requeue", "cluster.constraint=e"]
    printed = launch(config, "--dry-run", *more, environment={"MASKWRIGHT_PROFILE": str(profile)})
    for line in ('partition="c"', 'qos="b"', 'account="a"', 'time="24:00:00"', 'constraint="e"', "no-requeue"):
        assert f"#SBATCH --{line}\n" in printed
    assert "export X=b\nexport Z=a\nexport Y='c d'\n" in printed
    assert "module load b\n" in printed
    assert json.loads(printed.split("job.json\n")[-1])["container"] == {
        "image": "a",
        "mounts": ["/"],
        "python": "py",
    }


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["train.stpes=5"], "steps"),
        (["data.train=/nowhere"], "/nowhere"),
        (["--nodes", "3"], "global_batch_size"),
        (["--time", "soon"], "--time"),
        (["--job-name", "a\nb"], "job-name"),
        (["--seeds", "1-"], "--seeds"),
        (["--seeds", "1001"], "go up to 1000"),
        (["--profile", "/nowhere.yaml"], "/nowhere.yaml: no such config file"),
        (["--template", "/nowhere.sh"], "/nowhere.sh"),
        (["--sbatch", "--nodelist n1"], "form --NAME or --NAME=VALUE"),
        (["--sbatch", "--node=3"], "set cluster.nodes"),
        (["--sbatch", "--export=ALL,HF_TOKEN=x"], "HF_TOKEN looks like a secret"),
        (["--env", "HF_TOKEN=x"], "HF_TOKEN looks like a secret"),
        (["--env", "X"], "NAME=VALUE"),
        (["--env", "X-Y=1"], "cannot be an environment variable"),
        (["--env", "PROXY=http://me:word@host"], "PROXY looks like a secret"),
        (["--setup", "export WANDB_API_KEY=abc"], "WANDB_API_KEY looks like a secret"),
        (["--bind", "sockets"], "cluster.bind"),
        (["--spare-nodes", "1", "--max-restarts", "0"], "spare_nodes"),
        (["--container-image", "x"], "the container would not see"),
        (["--container-mount", "x", "--container-image", "x"], "/FROM:/TO"),
        (["--container-python", "x"], "cluster.container.image is missing"),
        (["--signal-seconds", "5"], "cluster.signal_seconds"),
        (["cluster.node=3"], "did you mean cluster.nodes?"),
    ],
)
def test_bad_input_is_one_sentence_and_submits_nothing(config: Path, arguments: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        launch(config, *arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (config.parent / "run").exists()


def test_the_command_line_says_it_in_one_sentence(config: Path) -> None:
    command = [sys.executable, "-m", "launchers.cli", "launch", "slurm", str(config), "--env", "HF_TOKEN=x"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: {config}: cluster.environment: HF_TOKEN looks like a secret")
    assert result.stderr.count("\n") == 1


def test_wrong_key_of_a_profile_names_the_profile(config: Path, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("partitoin: gpu")
    with pytest.raises(UserError, match=r"site.yaml: cluster.partitoin is not a key; .* cluster.partition\?"):
        launch(config, "--profile", tmp_path / "site.yaml")


def test_secrets_from_elsewhere_are_no_secrets(config: Path) -> None:
    lines = "export HF_TOKEN=$(cat ~/.token) TOKENIZERS_PARALLELISM=false"
    assert lines in launch(config, "--dry-run", "--setup", lines, "--env", "TOKENIZERS_PARALLELISM=false")


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
