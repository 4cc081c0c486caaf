"""Job arrays of a preparation and of a study: tasks of each element, quoting, and refusals before submission."""

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from data_prep.common.errors import UserError
from data_prep.common.processes import module_command
from data_prep.jobs import PrepareRequest, plan_only
from data_prep.sources import find_inputs
from data_prep.tokenizer import train_tokenizer
from launchers.slurm.job_chain import JobChain, refuse_while_queued
from launchers.slurm.prep_array import PrepArray, elements, jobs, make_submission, tasks_per_element
from launchers.slurm.study_array import study_chain
from pretrain.config import ClusterConfig
from pretrain.config_files import load_config
from tests.support.in_process import command, refused
from tests.support.slurm_jobs import NASTY, printing_python, program
from tests.support.study_runs import kept, study_config, study_data

ARRAY = PrepArray(Path("/shared/data/x"), cpus=3, cluster=ClusterConfig(cpu=True), memory_gb=2)
TASKS = {"task": [[0, 1], [7, 9]], "merge": []}


def asking(array: PrepArray, **options: str) -> PrepArray:
    """With these keys of config section `cluster`."""
    return dataclasses.replace(array, cluster=array.cluster.model_copy(update=options))


GB = 10**9


@pytest.mark.parametrize(
    ("count", "total_bytes", "cpus", "expected"),
    [
        (2000, 1, 1, 64),  # tiny tasks
        (2000, 0, 4, 256),
        (40, 200 * GB, 4, 4),  # large ones: one a core
        (300, 60 * GB, 1, 10),  # 2 GB a core
        (300, 60 * GB, 8, 80),
        (100_001, 50_000 * GB, 4, 101),  # no more than 1,000 elements
    ],
)
def test_tasks_of_an_element(count: int, total_bytes: int, cpus: int, expected: int) -> None:
    assert tasks_per_element(count, total_bytes, cpus, 1000) == expected
    parts = elements(list(range(count)), expected)
    assert [task for part in parts for task in part] == list(range(count))
    assert len(parts) <= 1000


def test_stages_wait_for_each_other() -> None:
    planned = jobs({"scan": [[n] for n in range(5)], "resolve": [[0, 1]], **TASKS})
    ids = {"scan": "1", "resolve": "3", "task": "4"}
    assert [(job.stage, job.options(ids)) for job in planned] == [
        ("scan", ["--array=1-5"]),
        ("resolve", ["--array=1-1", "--dependency=afterany:1"]),
        ("task", ["--array=1-2", "--dependency=afterok:3", "--kill-on-invalid-dep=yes"]),
        ("merge", ["--dependency=afterany:4"]),
    ]


def test_directives_ask_for_what_was_asked() -> None:
    array = asking(ARRAY, partition="cpu", account="me", time="2:00:00", mem="3G")
    common = ['nodes="1"', 'ntasks="1"', 'cpus-per-task="3"', 'mem="3G"', 'partition="cpu"', 'account="me"']
    scripts = array.chain(TASKS).files
    for stage, log in (("task", "%A_%a"), ("merge", "%j")):
        lines = [line for line in scripts[f"{stage}.sh"].splitlines() if line.startswith("#SBATCH")]
        own = [f'job-name="x-{stage}"', 'comment="maskwright:"', f'output="/shared/data/x/prep/slurm/{log}.log"']
        wanted = [*own, *common, 'time="2:00:00"', 'open-mode="append"', "requeue"]
        assert lines == [f"#SBATCH --{option}" for option in wanted]
    array = dataclasses.replace(ARRAY, out=Path("/shared/50%A"))
    assert '--output="/shared/50%%A/prep/slurm/%A_%a.log"' in array.chain(TASKS).files["task.sh"], "no pattern"


@pytest.fixture
def nasty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrepArray:
    """Paths that test all quoting; Python prints its folder and its arguments, each ended by a NUL."""
    printing_python(tmp_path / NASTY, monkeypatch)
    (tmp_path / NASTY / "out" / "prep").mkdir(parents=True)
    return asking(dataclasses.replace(ARRAY, out=tmp_path / NASTY / "out"), job_name=NASTY)


def run_script(script: Path, index: str) -> subprocess.CompletedProcess[str]:
    slurm = {"SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": index, "SLURM_CPUS_PER_TASK": "3"}
    # The working folder is where a word that the shell runs would write.
    words, environment = ["bash", str(script)], os.environ | slurm
    return subprocess.run(words, env=environment, cwd=script.parent, capture_output=True, text=True)


def written(array: PrepArray, stages: dict[str, list[list[int]]]) -> JobChain:
    """A submission with its files, without jobs."""
    chain = array.chain(stages)
    make_submission(chain.folder)
    for name, text in chain.files.items():
        (chain.folder / name).write_text(text)
    return chain


def test_an_element_does_the_tasks_of_its_line(nasty: PrepArray) -> None:
    folder = written(nasty, {"scan": [[5]], "resolve": [[0, 7]], **TASKS}).folder
    begin = [str(nasty.out.parent), *module_command("launchers.cli", "prep")[1:]]
    for index, numbers in (("1", "01"), ("2", "79")):
        result = run_script(folder / "task.sh", index)
        heading, called = result.stdout.split("\n", 1)
        assert heading.endswith(f": prep task {' '.join(numbers)}")
        words = [*begin, "task", str(nasty.out), "--workers", "3", "--yes", *numbers]
        assert called.split("\0--\0")[0].split("\0") == words
        assert not result.stderr
    out = str(nasty.out)
    for stage, words in (
        ("scan", ["task", out, "--stage", "scan", "--workers", "3", "--yes", "5"]),
        ("resolve", ["task", out, "--stage", "resolve", "--memory-gb", "2", "--workers", "3", "0", "7"]),
        ("merge", ["merge", out, "--workers", "3"]),
    ):
        called = run_script(folder / f"{stage}.sh", "1").stdout.split("\n", 1)[1]
        assert called.split("\0--\0")[0].split("\0") == [*begin, *words]
    result = run_script(folder / "task.sh", "3")
    assert result.returncode == 1
    assert "has no line 3" in result.stderr
    assert not list(nasty.out.parent.rglob("pwned"))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of the PATH, and the words given to sbatch and scancel in its file `calls`."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", str(folder))
    program(folder, "sbatch", f'echo "sbatch $*" >>{folder}/calls\nread n <{folder}/n\necho $((n+1)) | tee {folder}/n')
    (folder / "tee").symlink_to("/usr/bin/tee")
    (folder / "n").write_text("40\n")
    program(folder, "scancel", f'echo "scancel $*" >>{folder}/calls')
    return folder


def test_submission_and_its_refusal_while_it_runs(nasty: PrepArray, slurm: Path) -> None:
    chain = nasty.chain(TASKS)
    folder = chain.folder
    make_submission(folder)
    with pytest.raises(UserError, match="another submission"):
        make_submission(folder)
    assert chain.submit() == {"task": "41", "merge": "42"}
    calls = [f"--array=1-2 {folder}/task.sh", f"--dependency=afterany:41 {folder}/merge.sh"]
    assert (slurm / "calls").read_text().splitlines() == [f"sbatch --parsable {call}" for call in calls]
    assert (folder / "task.txt").read_text() == "0 1\n7 9\n"
    program(slurm, "squeue", f'echo "$*" >{slurm}/asked; echo 42; echo 41; echo 41')
    with pytest.raises(UserError, match=r"Jobs 41 42 of .*scancel 41 42"):
        refuse_while_queued(nasty.submission(nasty.last_number), nasty.out)
    assert "--jobs=41,42" in (slurm / "asked").read_text()
    for ended in ("true", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"):
        program(slurm, "squeue", ended)
        refuse_while_queued(nasty.submission(nasty.last_number), nasty.out)
    program(slurm, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(UserError, match="Unable to contact"):
        refuse_while_queued(nasty.submission(nasty.last_number), nasty.out)
    assert nasty.last_number == 1


def test_what_was_submitted_before_a_refusal_is_cancelled(nasty: PrepArray, slurm: Path) -> None:
    script = (slurm / "sbatch").read_text() + '\n[ "$1 $2" != "--parsable --dependency=afterany:41" ]'
    program(slurm, "sbatch", script + " || { echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1; }")
    with pytest.raises(UserError, match="QOSMaxSubmitJobPerUserLimit"):
        nasty.chain(TASKS).submit()
    assert (slurm / "calls").read_text().splitlines()[-1] == "scancel --quiet 41"


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A folder with the plan of three tasks."""
    (tmp_path / "text").mkdir()
    for name in "abc":
        (tmp_path / "text" / f"{name}.jsonl").write_text('{"text": "little meaning"}\n')
    train_tokenizer(["little meaning"], "wordpiece", 60, tmp_path / "tok")
    request = PrepareRequest(find_inputs([tmp_path / "text"]), tmp_path / "tok", tmp_path / "set")
    plan_only(request)
    return tmp_path / "set"


def test_dry_run_prints_what_it_would_do_and_writes_nothing(planned: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    before = sorted(planned.rglob("*"))
    ended = command("launch", "prep", planned, "--cpus", "2", "--tasks-per-job", "2", "--dry-run")
    assert ended.code == 0, ended.err
    folder = planned / "prep" / "slurm" / "submission-0001"
    assert f"# {folder}/task.txt: 2 lines, the first 0 1" in ended.out
    assert '#SBATCH --cpus-per-task="2"' in ended.out
    assert f"job1=$(sbatch --parsable --array=1-2 {folder}/task.sh)" in ended.out
    assert f"job2=$(sbatch --parsable --dependency=afterany:$job1 {folder}/merge.sh)" in ended.out
    for words, refusal in (
        ([], "login node"),
        (["--job-name", "a\n#SBATCH --wrap=x", "--dry-run"], "job-name"),
        (["--partition", "", "--dry-run"], "partition"),
    ):
        assert refusal in refused("launch", "prep", planned, *words)
    assert sorted(planned.rglob("*")) == before


def test_no_more_elements_than_the_cluster_s_arrays_have(planned: Path, slurm: Path) -> None:
    program(slurm, "scontrol", "echo 'MailProg = /x'; echo 'MaxArraySize            = 3'; echo 'MaxDBDMsgs = 3'")
    words = ("launch", "prep", planned, "--cpus", "1", "--dry-run")
    assert "array=1-2 " in command(*words, "--tasks-per-job", "2").out
    most = "makes more than 2 elements, the most of an array here. Write 2 or more."
    assert most in refused(*words, "--tasks-per-job", "1")
    program(slurm, "scontrol", "echo 'MaxArraySize = 0'")
    assert "This cluster has no job arrays" in refused(*words)


@pytest.fixture
def config(tmp_path):
    return study_config(tmp_path, study_data(tmp_path))


def test_a_job_of_a_study_asks_for_what_the_cluster_section_says(config):
    cluster = ["cluster.partition=gpu", "cluster.gpus_per_node=2", "cluster.time=2:00:00", "cluster.modules=[cuda]"]
    study = kept(config, *cluster, "cluster.options=[--mail-type=END]", processes=2)
    loaded = load_config(study.folder / "config.yaml")
    chain = study_chain(study, loaded)
    script = chain.files["run.sh"]
    asked = [(job.stage, *job.options({"run": "8"})) for job in chain.jobs]
    assert asked == [("run", "--array=1,2,3,4"), ("report", "--dependency=afterany:8")]
    asked = ['job-name="study-run"', 'gres="gpu:2"', 'cpus-per-task="8"', 'partition="gpu"', 'signal="B:USR1@120"']
    asked += ["requeue", 'mail-type="END"']
    assert {"module load cuda", *(f"#SBATCH --{line}" for line in asked)} <= {*script.splitlines()}
    assert script.endswith(f' -m launchers.cli study run {study.folder} --only "$SLURM_ARRAY_TASK_ID"\n')
    assert "gres" not in chain.files["report.sh"]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_a_dry_run_of_a_study_prints_the_scripts_and_writes_nothing(config):
    before = sorted(config.parent.rglob("*"))
    words = ["--over", "optim.lr=1e-3", "--seeds", "2", "--slurm", "--dry-run", "cluster.cpu=true"]
    ended = command("study", "sweep", config, *words)
    assert ended.code == 0, ended.err
    assert ended.out.count("#!/usr/bin/env bash") == 2
    assert "job1=$(sbatch --parsable --array=1,2 " in ended.out
    assert "job2=$(sbatch --parsable --dependency=afterany:$job1 " in ended.out
    assert sorted(config.parent.rglob("*")) == before
