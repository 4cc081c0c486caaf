"""Batch scripts of all jobs, as pure functions of config section `cluster`."""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from data_prep.common.errors import UserError
from pretrain.config import ClusterConfig

START_SECONDS = 180
"""Slurm may send its warning 60 s early, and training takes time to start. A shorter job would requeue forever."""
GPU_JOB_CORES = 4
"""Default cores per process with a GPU: for the training loop, its prefetch thread, NCCL and the tracker."""

_SCRIPT = """\
#!/usr/bin/env bash
# {purpose}
# You may edit it and submit it again with sbatch.

# After a restart the job appends to the log. Before the time limit, Slurm sends a signal to the process of this script
# only (B:). It then asks the run to save and stop.
{directives}

set -e
# Modules, conda and similar setup. Many of them fail under `set -u`, so it is set afterwards.
{setup}
set -uo pipefail

cd {working_dir}
{environment}
{command}
"""


def batch_script(
    cluster: ClusterConfig, purpose: str, options: Mapping[str, str | None], command: str, warns: bool = True
) -> str:
    """Render a batch script that runs in this working folder, with this Python and the options of section `cluster`.

    Every value is quoted for sbatch or bash.

    Args:
        purpose: comment at the top.
        options: sbatch options in addition to the keys of `cluster`. Options with the value None are left out.
        command: lines of bash at the end. They must replace the shell (exec), so that it gets Slurm's signals.
        warns: let Slurm send a warning before the time limit.

    Raises:
        UserError: if a value is invalid in an `#SBATCH` line, or the time limit is malformed or too short.
    """
    if cluster.time is not None and warns:
        check_time_limit(cluster.time, cluster.signal_seconds)
    names = ("mem", "partition", "account", "qos", "constraint", "reservation", "time")
    values = {**options, **{name: getattr(cluster, name) for name in names}}
    values |= {"signal": f"B:USR1@{cluster.signal_seconds}" if warns else None, "open-mode": "append"}
    lines = [f"--{name}={sbatch_quote(name, value)}" for name, value in values.items() if value is not None]
    lines += ["--requeue" if cluster.requeue else "--no-requeue", *["--exclusive"] * cluster.exclusive]
    for option in cluster.options:
        name, equals, value = option.partition("=")
        lines.append(f"{name}={sbatch_quote(name, value)}" if equals else name)
    return _SCRIPT.format(
        purpose=purpose,
        directives="\n".join(f"#SBATCH {line}" for line in lines),
        setup=_setup_lines(cluster),
        working_dir=shlex.quote(os.getcwd()),
        environment=_environment_lines(cluster),
        command=command,
    )


def cores_of(cluster: ClusterConfig) -> int:
    """Cores of each training process."""
    return cluster.cpus_per_process or (1 if cluster.cpu else GPU_JOB_CORES)


def log_pattern(folder: Path, name: str) -> str:
    """The path of a log in sbatch's notation. Patterns in `name` stay (%j is the job id); `folder` is escaped."""
    return f"{folder}/".replace("%", "%%") + name


def sbatch_quote(name: str, value: str) -> str:
    """Quote a value for an `#SBATCH` line by sbatch's rules: double quotes, and a backslash before `"` and `\\`.

    Raises UserError for characters that would end the line, and for a backslash in the log's path, which makes sbatch
    ignore patterns such as %j.
    """
    if not value.isprintable() or not value:
        raise UserError(
            f"{name} {value!r} cannot be written in a Slurm script: it is empty or has unprintable characters"
        )
    if name == "output" and "\\" in value:
        raise UserError(
            f"output {value!r} has a backslash, which Slurm cannot have in a log's path: choose another path"
        )
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


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
    if days is None and len(numbers) < 3:
        numbers = [0, *numbers]
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if 0 < total < signal_seconds + START_SECONDS:
        raise UserError(
            f"--time {text} is {total} s, but Slurm asks the job to stop {signal_seconds} s before its end: "
            f"give it at least {-(-(signal_seconds + START_SECONDS) // 60)} minutes"
        )


def _setup_lines(cluster: ClusterConfig) -> str:
    """Lines that load modules and run cluster.setup."""
    lines = []
    if cluster.modules:
        lines.append("if ! command -v module >/dev/null; then source /etc/profile || true; fi")
        lines.append(f"module load {shlex.join(cluster.modules)}")
    return "\n".join([*lines, *(cluster.setup or "").splitlines()]) or "# (none)"


def _environment_lines(cluster: ClusterConfig) -> str:
    """Lines that set environment variables of the job's processes."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in cluster.environment.items()]
    # Not resolved: the python of a virtual environment is a link, and its location identifies the environment.
    lines.append("# The Python environment that submitted the job.")
    lines.append(f"export PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH")
    lines.append(f"export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{cores_of(cluster)}}}")
    return "\n".join([*lines, *(["export DS_ACCELERATOR=cpu"] if cluster.cpu else [])])
