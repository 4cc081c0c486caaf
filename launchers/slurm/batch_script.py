"""Batch scripts of training runs and studies, as pure functions of the config."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from data_prep.errors import UserError
from launchers.slurm.client import COMMENT
from launchers.slurm.script_template import Template, directives, sbatch_quote
from launchers.slurm.submission import Submission, cores_of
from pretrain.config import ClusterConfig
from pretrain.run import RunFolder

START_SECONDS = 180
"""Slurm may send its warning 60 s early, and training takes time to start. A shorter job would requeue forever."""


def render(submission: Submission) -> str:
    """Render the batch script of a run.

    Raises:
        UserError: as batch_script.
    """
    cluster, job = submission.cluster, submission.jobs[0]
    run, python = str(submission.config.run.dir), shlex.quote(str(submission.python))
    return batch_script(
        cluster,
        purpose="A training run, written by `maskwright launch slurm`. It becomes launchers/slurm/supervisor.py.",
        options={
            "job-name": cluster.job_name or submission.config.run.dir.name,
            "comment": f"{COMMENT}{run}/seed-%a" if submission.seeds else f"{COMMENT}{run}",
            "output": submission.log,
            "array": submission.seeds.text if submission.seeds else None,
            "nodes": str(job.nodes + job.spare_nodes),
            "ntasks-per-node": str(job.processes_per_node),
            "cpus-per-task": str(job.cpus_per_process),
            "gres": None if job.cpu else f"gpu:{job.processes_per_node}",
        },
        # With spare nodes the supervisor continues without a lost node. Without them Slurm ends the job.
        flags=["no-kill"] * (job.spare_nodes > 0),
        python=submission.python,
        working_dir=submission.working_dir,
        command=f"{python} -m launchers.slurm.supervisor {_job_path(submission)}",
    )


def batch_script(
    cluster: ClusterConfig,
    purpose: str,
    options: Mapping[str, str | None],
    flags: Sequence[str],
    python: Path,
    working_dir: Path,
    command: str,
) -> str:
    """Render a batch script with the options of config section `cluster`. Every value is quoted for sbatch or bash.

    Args:
        purpose: comment at the top.
        options, flags: sbatch options in addition to those of `cluster`.
        command: bash line that the script executes at its end.

    Raises:
        UserError: if a value is invalid in an `#SBATCH` line, or the time limit is malformed or too short.
    """
    if cluster.time is not None:
        check_time_limit(cluster.time, cluster.signal_seconds)
    names = ("mem", "partition", "account", "qos", "constraint", "reservation", "time")
    shared = {name: getattr(cluster, name) for name in names}
    shared |= {"signal": f"B:USR1@{cluster.signal_seconds}", "open-mode": "append"}
    flags = ["requeue" if cluster.requeue else "no-requeue", *["exclusive"] * cluster.exclusive, *flags]
    own = [option.removeprefix("--").partition("=") for option in cluster.options]
    lines = [directives({**options, **shared}), *(f"#SBATCH --{flag}" for flag in flags)]
    lines += [f"#SBATCH --{name}" + (f"={sbatch_quote(name, value)}" if equals else "") for name, equals, value in own]
    return Template.load("slurm.sh").substitute(
        purpose=purpose,
        directives="\n".join(lines),
        setup=_setup_lines(cluster),
        working_dir=shlex.quote(str(working_dir)),
        environment=_environment_lines(cluster, python),
        command=command,
    )


def _setup_lines(cluster: ClusterConfig) -> str:
    """Lines that load modules and run cluster.setup."""
    lines = []
    if cluster.modules:
        lines.append("if ! command -v module >/dev/null; then source /etc/profile || true; fi")
        lines.append(f"module load {shlex.join(cluster.modules)}")
    return "\n".join([*lines, *(cluster.setup or "").splitlines()]) or "# (none)"


def _environment_lines(cluster: ClusterConfig, python: Path) -> str:
    """Lines that set environment variables of the job's processes."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in cluster.environment.items()]
    lines.append("# The Python environment that submitted the job.")
    lines.append(f"export PATH={shlex.quote(str(python.parent))}:$PATH")
    lines.append(f"export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{cores_of(cluster)}}}")
    return "\n".join([*lines, *(["export DS_ACCELERATOR=cpu"] if cluster.cpu else [])])


def _job_path(submission: Submission) -> str:
    if submission.seeds is None:
        return shlex.quote(str(submission.jobs[0].path))
    seed = shlex.quote(f"{submission.config.run.dir}/seed-")
    return f'{seed}"$SLURM_ARRAY_TASK_ID"/{RunFolder(Path()).job}'


def check_time_limit(text: str, signal_seconds: int) -> None:
    """Raise UserError for a malformed time limit, and for one with less than START_SECONDS before the warning.

    Slurm's forms: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes,
    days-hours:minutes:seconds.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        raise UserError(f"--time {text!r} is not a time limit. Write minutes, HH:MM:SS, or D-HH:MM:SS.")
    days, *fields = match.groups()
    numbers = [int(field) for field in fields if field is not None]
    if days is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if 0 < total < signal_seconds + START_SECONDS:
        raise UserError(
            f"--time {text} is {total} s, but Slurm asks the job to stop {signal_seconds} s before its end: "
            f"give it at least {-(-(signal_seconds + START_SECONDS) // 60)} minutes"
        )
