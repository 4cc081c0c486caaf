"""`maskwright launch slurm`: its dry run, options against config and profile, and refusals."""

import re
from pathlib import Path

import pytest
import yaml

from data_prep.common.errors import UserError
from launchers.slurm import client
from tests.support.configs import config_file
from tests.support.datasets import make_dataset
from tests.support.in_process import invoke
from tests.support.slurm_jobs import program


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config whose run folder is tmp_path/run and whose global batch is 32 rows."""
    make_dataset(tmp_path / "data", [range(5, 50)] * 40)
    values = {"run": {"dir": str(tmp_path / "run")}, "data": {"train": str(tmp_path / "data")}, "train": {"steps": 3}}
    return config_file(tmp_path / "run.yaml", values)


def launch(*arguments: str | Path, **environment: str) -> str:
    """The output of the command; raises its exceptions. There is no sbatch."""
    return invoke("launch", "slurm", *arguments, PATH="/nowhere", **environment).output


def test_dry_run_prints_what_would_be_submitted_and_writes_nothing(config: Path) -> None:
    printed = launch(config, "--nodes", "2", "--gpus-per-node", "8", "--dry-run", "run.seed=3")
    script, text = re.split(r"\n# (?=/.*/config.yaml\n)", printed)
    assert '#SBATCH --nodes="2"' in script
    assert '#SBATCH --ntasks-per-node="8"' in script
    path, _, described = text.partition("\n")
    job = yaml.safe_load(described)
    assert path == f"{config.parent}/run/slurm/config.yaml"
    assert job["run"] | {"dir": str(config.parent / "run"), "seed": 3} == job["run"]
    assert (job["cluster"]["nodes"], job["cluster"]["gpus_per_node"]) == (2, 8)
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
    more = ["--partition", "c", "cluster.environment.Y=c d", "cluster.container.python=py", "cluster.requeue=false"]
    more += ["cluster.constraint=e"]
    printed = launch(config, "--dry-run", *more, MASKWRIGHT_PROFILE=str(profile))
    for line in ('partition="c"', 'qos="b"', 'account="a"', 'time="24:00:00"', 'constraint="e"', "no-requeue"):
        assert f"#SBATCH --{line}\n" in printed
    assert "export X=b\nexport Z=a\nexport Y='c d'\n" in printed
    assert "module load b\n" in printed
    container = yaml.safe_load(printed.split("config.yaml\n")[-1])["cluster"]["container"]
    assert container == {"image": "a", "mounts": ["/"], "python": "py"}


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["data.train=/nowhere"], "/nowhere"),
        (["--nodes", "3"], "global_batch_size"),
        (["--time", "soon"], "--time"),
        (["--job-name", "a\nb"], "job-name"),
        (["--profile", "/nowhere.yaml"], "No config file at /nowhere.yaml"),
        (["cluster.options=[--nodelist n1]"], "form --NAME or --NAME=VALUE"),
        (["cluster.options=[--node=3]"], "set cluster.nodes"),
        (["cluster.options=['--export=ALL,HF_TOKEN=x']"], "HF_TOKEN looks like a secret"),
        (
            ["cluster.environment.HF_TOKEN=x"],
            "override cluster.environment.HF_TOKEN: cluster.environment: HF_TOKEN looks",
        ),
        (["cluster.environment.X-Y=1"], "cannot be an environment variable"),
        (["cluster.environment.PROXY=http://me:word@host"], "PROXY looks like a secret"),
        (["cluster.setup=export WANDB_API_KEY=abc"], "WANDB_API_KEY looks like a secret"),
        (["cluster.spare_nodes=1", "cluster.max_restarts=0"], "spare_nodes"),
        (["cluster.container.image=x"], "the container cannot access"),
        (["cluster.container={mounts: [x], image: x}"], "/FROM:/TO"),
        (["cluster.container.python=x"], "cluster.container.image is missing"),
        (["cluster.node=3"], "Did you mean cluster.nodes?"),
    ],
)
def test_bad_input_is_one_sentence_and_submits_nothing(config: Path, arguments: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        launch(config, *arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (config.parent / "run").exists()


def test_a_second_job_of_a_run_is_refused(config: Path, tmp_path: Path) -> None:
    """The first reads its config again when Slurm restarts it."""
    queue, bin = tmp_path / "queue", tmp_path / "bin"
    program(bin, "sbatch", "echo 12")
    program(bin, "squeue", f"cat {queue}")
    words = ("launch", "slurm", config, "--cpu")
    assert "Submitted job 12." in invoke(*words, PATH=f"{bin}:/bin:/usr/bin").output
    job = tmp_path / "run" / "slurm" / "config.yaml"
    before = job.read_bytes()
    fields = dict.fromkeys(client.FIELDS, "x") | {"id": "12", "comment": f"{client.COMMENT}{tmp_path / 'run'}"}
    queue.write_text(client.SEPARATOR.join(fields.values()) + "\n")
    said = f"Job 12 of .*/run waits or runs, .*end it with `maskwright stop {tmp_path}/run`"
    with pytest.raises(UserError, match=said):
        invoke(*words, "run.seed=3", PATH=f"{bin}:/bin:/usr/bin")
    queue.unlink()
    with pytest.raises(UserError, match=r"Cannot find out whether a job of .*/run waits or runs: .*queue"):
        invoke(*words, "run.seed=3", PATH=f"{bin}:/bin:/usr/bin")
    assert job.read_bytes() == before
    queue.write_text("")
    assert "Submitted job 12." in invoke(*words, "run.seed=3", PATH=f"{bin}:/bin:/usr/bin").output
    assert job.read_bytes() != before


def test_wrong_key_of_a_profile_names_the_profile(config: Path, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("partitoin: gpu")
    with pytest.raises(UserError, match=r"site.yaml: Unknown key cluster.partitoin. Did you mean cluster.partition\?"):
        launch(config, "--profile", tmp_path / "site.yaml")


def test_secrets_from_elsewhere_are_no_secrets(config: Path) -> None:
    lines = "export HF_TOKEN=$(cat ~/.token) TOKENIZERS_PARALLELISM=false"
    more = [f"cluster.setup={lines}", "cluster.environment.TOKENIZERS_PARALLELISM=false"]
    assert lines in launch(config, "--dry-run", *more)
