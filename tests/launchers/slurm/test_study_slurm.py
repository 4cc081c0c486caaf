"""A study as Slurm jobs: their dependencies and the resources in their scripts."""

import subprocess

import pytest

from launchers.slurm.study_array import plan, render
from pretrain.config import load_config
from tests.support.study_runs import kept, study_config, study_data


@pytest.fixture
def config(tmp_path):
    return study_config(tmp_path, study_data(tmp_path))


def test_the_report_waits_for_the_runs():
    def options(numbers):
        return [(job.stage, job.options({"run": ["8"]})) for job in plan(numbers)]

    assert options([2, 3]) == [("run", ["--array=2,3"]), ("report", ["--dependency=afterany:8"])]
    assert options([]) == [("report", [])]


def test_a_job_script_asks_for_what_the_cluster_section_says(config):
    cluster = ["cluster.partition=gpu", "cluster.gpus_per_node=2", "cluster.time=2:00:00", "cluster.modules=[cuda]"]
    study = kept(config, *cluster, "cluster.options=[--mail-type=END]", processes=2)
    loaded = load_config(study.folder / "config.yaml")
    script = render(study, loaded, "run")
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
    assert "gres" not in render(study, loaded, "report")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
