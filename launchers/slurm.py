"""A Slurm job for one training run: the batch script as a pure function of the job, and its submission."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import UserError
from data_prep.files import atomic_writer
from launchers.sbatch import Template, directives, log_pattern

SHORTEST_MINUTES = 5
"""Slurm warns the job 120 s, give or take 60 s, before its limit: a shorter job would be told to stop as it starts."""


@dataclass(frozen=True)
class SlurmJob:
    """What the batch script says. Paths are absolute, and on storage that all nodes share."""

    config: Path
    overrides: list[str]
    run_dir: Path
    working_dir: Path
    python: Path
    nodes: int
    processes_per_node: int
    cpus_per_process: int
    cpu: bool
    job_name: str
    output: str | None = None
    partition: str | None = None
    account: str | None = None
    time: str | None = None

    @property
    def folder(self) -> Path:
        """Where the script, the hostfiles and, by default, the logs are kept."""
        return self.run_dir / "slurm"

    @property
    def log_pattern(self) -> str:
        """The log's path in sbatch's notation: %j is the job id, %% a percent sign."""
        return self.output or log_pattern(self.folder, "%j.log")


def render(job: SlurmJob) -> str:
    """The text of the batch script; every value in it is quoted for the reader of its line, sbatch or bash.

    Raises:
        UserError: when a value cannot stand in an `#SBATCH` line, or the time limit is malformed or too short.
    """
    if job.time is not None:
        check_time_limit(job.time)
    cores = job.processes_per_node * job.cpus_per_process
    options = {
        "job-name": job.job_name,
        "output": job.log_pattern,
        "gres": None if job.cpu else f"gpu:{job.processes_per_node}",
        "partition": job.partition,
        "account": job.account,
        "time": job.time,
    }
    return Template.load("slurm.sh").substitute(
        directives=directives(options),
        nodes=job.nodes,
        processes=job.processes_per_node,
        cores=cores,
        threads=job.cpus_per_process,
        cpu="yes" if job.cpu else "no",
        config=shlex.quote(str(job.config)),
        overrides=shlex.join(job.overrides),
        run_dir=shlex.quote(str(job.run_dir)),
        working_dir=shlex.quote(str(job.working_dir)),
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


def write_script(job: SlurmJob) -> Path:
    """Write RUN/slurm/job.sh and return its path. Nothing is created when the job cannot be rendered."""
    text = render(job)
    path = job.folder / "job.sh"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}): choose another run.dir") from None
    return path
