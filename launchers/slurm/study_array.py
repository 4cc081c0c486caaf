"""A study as Slurm jobs: a job array with one element per run, and the report."""

import os
import shlex

from data_prep.common.errors import UserError
from data_prep.common.processes import module_command
from evaluation.study import Study, Sweep
from launchers.slurm import client
from launchers.slurm.batch_script import batch_script, cores_of, log_pattern
from launchers.slurm.job_chain import ChainedJob, JobChain, refuse_while_queued
from launchers.slurm.requeue_decision import ending_of
from pretrain.config import Config


def submit_study(study: Study, sweep: Sweep) -> None:
    """Write the study, submit the unfinished parts, each run as one array element, and print the jobs.

    Raises UserError if Slurm is missing or refuses a job, jobs of this study are queued, or a run needs a container.
    """
    chain = study_chain(study, sweep.configs[0])
    client.check_available()
    refuse_while_queued(chain.folder, study.folder)  # before the config that they read is replaced
    study.save(sweep)
    chain.submit()
    print(f"  report  {study.folder / 'report.html'}, at the end")
    print(f"  logs    {chain.folder}")


def study_chain(study: Study, config: Config) -> JobChain:
    """The jobs and scripts of the unfinished parts. The report waits for the runs, even if some fail.

    Raises UserError if a value is invalid in a script, the time limit is malformed or too short, the study has more
    runs than an array has elements, or a run needs a container.
    """
    numbers = study.unfinished
    if config.cluster.container:
        raise UserError(
            "cluster.container is not supported for studies. Remove it, and prepare the environment with cluster.setup."
        )
    if numbers and numbers[-1] >= (most := client.max_array_size()):
        raise UserError(f"the study has {numbers[-1]} runs, and an array has {most - 1} elements at most here")
    jobs = [ChainedJob("run", ",".join(map(str, numbers)))] if numbers else []
    jobs.append(ChainedJob("report", after="run" if numbers else None))
    files = {f"{job.stage}.sh": _script(study, config, job.stage) for job in jobs}
    return JobChain(study.folder / "slurm", files, jobs)


def _script(study: Study, config: Config, part: str) -> str:
    cluster, here = config.cluster, study.folder.absolute()
    option = ' --only "$SLURM_ARRAY_TASK_ID"' if part == "run" else " --report"
    program = module_command("launchers.cli", "study", "run", str(here))
    return batch_script(
        cluster,
        purpose="A part of a study, written by `maskwright study sweep --slurm`. Finished runs are skipped.",
        options={
            "job-name": f"{cluster.job_name or here.name}-{part}",
            "comment": client.COMMENT,
            "output": log_pattern(here / "slurm", "%A_%a.log" if part == "run" else "%j.log"),
            "nodes": "1",
            "ntasks": "1",
            "cpus-per-task": str(study.processes * cores_of(cluster)),
            "gres": None if cluster.cpu or part == "report" else f"gpu:{study.processes}",
        },
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
