"""A study as Slurm jobs: a job array with one element per run, and the report."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.files import write_file
from data_prep.common.processes import module_command
from evaluation.study import Study
from launchers.slurm import client
from launchers.slurm.batch_script import batch_script, cores_of, log_pattern
from launchers.slurm.job_chain import ChainedJob, refuse_while_queued, submit_chain
from launchers.slurm.requeue_decision import ending_of
from pretrain.config import Config

PARTS = ("run", "report")


def submit_study(study: Study, config: Config) -> str:
    """Submit the unfinished parts, each run as one array element. Returns the message for the user.

    Raises:
        UserError: if Slurm is missing or refuses a job, jobs of this study are queued, or a run needs a container.
    """
    client.check_available()
    folder, numbers = study.folder, study.unfinished
    _check(folder, numbers, config)
    made = folder / "slurm"
    made.mkdir(exist_ok=True)
    for part in PARTS:
        write_file(made / f"{part}.sh", render(study, config, part).encode())
    submitted = submit_chain(plan(numbers), made)
    return _words(folder, numbers, [job_id for ids in submitted.values() for job_id in ids])


def plan(numbers: Sequence[int]) -> list[ChainedJob]:
    """The jobs in order. The report waits for the runs, even if some fail."""
    jobs = [ChainedJob("run", ",".join(map(str, numbers)))] if numbers else []
    return [*jobs, ChainedJob("report", after="run" if numbers else None)]


def render(study: Study, config: Config, part: str) -> str:
    """Render the batch script of a part.

    Raises:
        UserError: if a value is invalid in a script, or the time limit is malformed or too short.
    """
    cluster, python, here = config.cluster, Path(os.path.abspath(sys.executable)), study.folder.absolute()
    option = ' --only "$SLURM_ARRAY_TASK_ID"' if part == "run" else " --report"
    program = module_command("launchers.cli", "study", "run", str(here), python=str(python))
    return batch_script(
        cluster,
        purpose="A part of a masking study, written by `maskwright study masking --slurm`. Finished runs are skipped.",
        options={
            "job-name": f"{cluster.job_name or here.name}-{part}",
            "comment": client.COMMENT,
            "output": log_pattern(here / "slurm", "%A_%a.log" if part == "run" else "%j.log"),
            "nodes": "1",
            "ntasks": "1",
            "cpus-per-task": str(study.processes * cores_of(cluster)),
            "gres": None if cluster.cpu or part == "report" else f"gpu:{study.processes}",
        },
        python=python,
        working_dir=Path.cwd(),
        command=f"exec {shlex.join(program)}{option}",
    )


def queue_again() -> None:
    """Requeue the job of this process, if Slurm warned it before its time limit."""
    if "SLURM_JOB_ID" not in os.environ:
        return
    fields, name = client.own_fields(), client.own_name()
    if ending_of(fields) == "no" and fields.get("BatchFlag") == fields.get("Requeue") == "1":
        problem = client.requeue([])
        print(f"job {name} cannot be queued again: {problem}" if problem else f"job {name} is queued again", flush=True)


def _check(folder: Path, numbers: Sequence[int], config: Config) -> None:
    if config.cluster.container:
        raise UserError(
            "cluster.container is not supported for studies. Remove it, and prepare the environment with cluster.setup."
        )
    if numbers and numbers[-1] >= (most := client.max_array_size()):
        raise UserError(f"the study has {numbers[-1]} runs, and an array has {most - 1} elements at most here")
    refuse_while_queued(folder / "slurm", folder)


def _words(folder: Path, numbers: Sequence[int], ids: Sequence[str]) -> str:
    return "\n".join(
        [
            f"Submitted jobs {' '.join(ids)}: {len(numbers)} runs, each an element of an array, and the report.",
            f"  state   squeue --jobs {','.join(ids)}",
            f"  report  {folder / 'report.html'}, at the end",
            f"  logs    {folder / 'slurm'}",
            f"  cancel  scancel {' '.join(ids)}",
        ]
    )
