"""A Slurm job for one training run: the batch script as a pure function of the job, and its submission."""

import re
import shlex
import string
import subprocess
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from data_prep.errors import UserError
from data_prep.files import atomic_writer

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
        return self.output or f"{self.folder}/%j.log".replace("%", "%%").replace("%%j.log", "%j.log")


class _Template(string.Template):
    """`@{name}` is filled in and `@@` is an at sign, so that the shell keeps its dollars."""

    delimiter = "@"


def render(job: SlurmJob) -> str:
    """The text of the batch script; every value in it is quoted for the reader of its line, sbatch or bash.

    Raises:
        UserError: when a value cannot stand in an `#SBATCH` line, or the time limit is malformed or too short.
    """
    template = _Template(resources.files("launchers").joinpath("templates/slurm.sh").read_text(encoding="utf-8"))
    cores = job.processes_per_node * job.cpus_per_process
    return template.substitute(
        directives="\n".join(_directives(job)),
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


def _directives(job: SlurmJob) -> list[str]:
    if job.time is not None:
        check_time_limit(job.time)
    options = {
        "job-name": job.job_name,
        "output": job.log_pattern,
        "gres": None if job.cpu else f"gpu:{job.processes_per_node}",
        "partition": job.partition,
        "account": job.account,
        "time": job.time,
    }
    return [f"#SBATCH --{name}={sbatch_quote(name, value)}" for name, value in options.items() if value is not None]


def sbatch_quote(name: str, value: str) -> str:
    """Quote a value for an `#SBATCH` line by sbatch's rules: double quotes, and a backslash before `"` and `\\`.

    Raises:
        UserError: for characters that would end the line, and for a backslash in the log's path, which sbatch
            takes as `leave %j as it is`.
    """
    if not value.isprintable() or not value:
        raise UserError(
            f"{name} {value!r} cannot be written in a Slurm script: it is empty or has unprintable characters"
        )
    if name == "output" and "\\" in value:
        raise UserError(
            f"output {value!r} has a backslash, which Slurm cannot have in a log's path: choose another with --output"
        )
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


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


def submit(script: Path) -> str:
    """Hand the script to sbatch and return the job's id.

    Raises:
        UserError: when there is no sbatch here, or with sbatch's own words when it refuses the job.
    """
    try:
        result = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True)
    except FileNotFoundError:
        raise UserError(
            f"sbatch was not found: run this on a login node of a Slurm cluster (the script is at {script})"
        ) from None
    if result.returncode != 0:
        words = " ".join(line.removeprefix("sbatch: error: ") for line in result.stderr.splitlines())
        raise UserError(f"sbatch refused the job: {words} (the script is at {script})")
    return result.stdout.strip().split(";")[0]
