"""A study as Slurm jobs: their dependencies and the resources in their scripts."""

import subprocess

import pytest

from launchers.slurm.study_array import study_chain
from pretrain.config_files import load_config
from tests.support.in_process import command
from tests.support.study_runs import kept, study_config, study_data


@pytest.fixture
def config(tmp_path):
    return study_config(tmp_path, study_data(tmp_path))


def test_a_job_script_asks_for_what_the_cluster_section_says(config):
    cluster = ["cluster.partition=gpu", "cluster.gpus_per_node=2", "cluster.time=2:00:00", "cluster.modules=[cuda]"]
    study = kept(config, *cluster, "cluster.options=[--mail-type=END]", processes=2)
    loaded = load_config(study.folder / "config.yaml")
    chain = study_chain(study, loaded)
    script = chain.files["run.sh"]
    assert [(job.stage, job.options({"run": "8"})) for job in chain.jobs] == [
        ("run", ["--array=1,2,3,4"]),
        ("report", ["--dependency=afterany:8"]),
    ]
    for line in (
        '#SBATCH --job-name="study-run"',
        '#SBATCH --gres="gpu:2"',
        '#SBATCH --cpus-per-task="8"',
        '#SBATCH --partition="gpu"',
        '#SBATCH --signal="B:USR1@120"',
        "#SBATCH --requeue",
        '#SBATCH --mail-type="END"',
        "module load cuda",
    ):
        assert line in script.splitlines(), line
    assert script.endswith(f' -m launchers.cli study run {study.folder} --only "$SLURM_ARRAY_TASK_ID"\n')
    assert "gres" not in chain.files["report.sh"]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_a_dry_run_prints_the_scripts_and_writes_nothing(config):
    before = sorted(config.parent.rglob("*"))
    words = ["--strategies", "token", "--rates", "0.15", "--seeds", "2", "--slurm", "--dry-run", "cluster.cpu=true"]
    ended = command("study", "masking", config, *words)
    assert ended.code == 0, ended.err
    assert ended.out.count("#!/usr/bin/env bash") == 2
    assert "job1=$(sbatch --parsable --array=1,2 " in ended.out
    assert "job2=$(sbatch --parsable --dependency=afterany:$job1 " in ended.out
    assert sorted(config.parent.rglob("*")) == before
