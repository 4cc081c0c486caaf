"""A Slurm job for one training run: the batch script as a pure function of the job, and its submission."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import UserError
from data_prep.files import atomic_writer
from launchers.sbatch import Template, directives, log_pattern
from launchers.slurm.job import Job

SHORTEST_MINUTES = 5
"""Slurm warns the job 120 s, give or take 60 s, before its limit: a shorter job would be told to stop as it starts."""


@dataclass(frozen=True)
class Batch:
    """What sbatch is told about a job. Paths are absolute, and on storage that all nodes share."""

    working_dir: Path
    job_name: str
    output: str | None = None
    partition: str | None = None
    account: str | None = None
    time: str | None = None


def log_of(job: Job, batch: Batch) -> str:
    """The log's path in sbatch's notation: %j is the job id, %% a percent sign."""
    return batch.output or log_pattern(job.folder, "%j.log")


def render(job: Job, batch: Batch) -> str:
    """The text of the batch script; every value in it is quoted for the reader of its line, sbatch or bash.

    Raises:
        UserError: when a value cannot stand in an `#SBATCH` line, or the time limit is malformed or too short.
    """
    if batch.time is not None:
        check_time_limit(batch.time)
    options = {
        "job-name": batch.job_name,
        "output": log_of(job, batch),
        "gres": None if job.cpu else f"gpu:{job.processes_per_node}",
        "partition": batch.partition,
        "account": batch.account,
        "time": batch.time,
    }
    return Template.load("slurm.sh").substitute(
        directives=directives(options),
        nodes=job.nodes + job.spare_nodes,
        cores=job.processes_per_node * job.cpus_per_process,
        threads=job.cpus_per_process,
        accelerator="export DS_ACCELERATOR=cpu" if job.cpu else "",
        job=shlex.quote(str(job.path)),
        working_dir=shlex.quote(str(batch.working_dir)),
        python=shlex.quote(str(job.python)),
        bin_dir=shlex.quote(str(job.python.parent)),
    )


def check_time_limit(text: str) -> None:
    """Refuse a `--time` that Slurm would not read, or under SHORTEST_MINUTES.

    Slurm's forms: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes,
    days-hours:minutes:seconds.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        raise UserError(f"--time {text!r} is no time limit: write minutes, HH:MM:SS, or D-HH:MM:SS")
    days, *fields = match.groups()
    numbers = [int(field) for field in fields if field is not None]
    if days is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if 0 < total < SHORTEST_MINUTES * 60:
        raise UserError(
            f"--time {text} is {total} s, but the job is told to save and stop 120 s before its end: "
            f"give it at least {SHORTEST_MINUTES} minutes"
        )


def write_script(job: Job, batch: Batch) -> Path:
    """Write RUN/slurm/job.sh and job.json; the path of the script. If it cannot be rendered, nothing is created."""
    text = render(job, batch)
    job.write()
    path = job.folder / "job.sh"
    with atomic_writer(path) as file:
        file.write(text.encode())
    return path
