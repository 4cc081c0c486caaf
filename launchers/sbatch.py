"""What all batch scripts share: the templates' language, sbatch's quoting, and the calls of Slurm's programs."""

import re
import shutil
import string
import subprocess
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from data_prep.errors import MissingFile, UserError
from data_prep.reading import read_text, unusable

MAX_ARRAY_SIZE = 1001
"""Slurm's default: indices of a job array go up to one less."""
_MAX_JOBS_BYTES = 1 << 20
_JOB_ID = re.compile(r"[1-9][0-9]{0,18}")


class Template(string.Template):
    """`@{name}` is filled in and `@@` is an at sign, so that the shell keeps its dollars."""

    delimiter = "@"

    @classmethod
    def load(cls, name: str) -> "Template":
        """The template of that file name in launchers/templates."""
        return cls(resources.files("launchers").joinpath(f"templates/{name}").read_text(encoding="utf-8"))


def directives(options: Mapping[str, str | None]) -> str:
    """One `#SBATCH` line for each option that has a value."""
    return "\n".join(
        f"#SBATCH --{name}={sbatch_quote(name, value)}" for name, value in options.items() if value is not None
    )


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
            f"output {value!r} has a backslash, which Slurm cannot have in a log's path: choose another path"
        )
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def log_pattern(folder: Path, name: str) -> str:
    """The path of a log in sbatch's notation: of `name` the patterns are kept (%j is the job id), of `folder` none."""
    return f"{folder}/".replace("%", "%%") + name


def check_available() -> None:
    """Raise UserError where there is no sbatch."""
    if shutil.which("sbatch") is None:
        raise UserError("sbatch was not found: run this on a login node of a Slurm cluster")


def submit(script: Path, options: Sequence[str] = (), arguments: Sequence[str] = ()) -> str:
    """Hand the script to sbatch, `sbatch OPTIONS SCRIPT ARGUMENTS`, and return the job's id.

    Raises:
        UserError: when there is no sbatch here, or with sbatch's own words when it refuses the job.
    """
    try:
        result = subprocess.run(
            ["sbatch", "--parsable", *options, str(script), *arguments], capture_output=True, text=True
        )
    except FileNotFoundError:
        raise UserError(
            f"sbatch was not found: run this on a login node of a Slurm cluster (the script is at {script})"
        ) from None
    if result.returncode != 0:
        words = " ".join(line.removeprefix("sbatch: error: ") for line in result.stderr.splitlines())
        raise UserError(f"sbatch refused the job: {words} (the script is at {script})")
    return result.stdout.strip().split(";")[0]


def cancel(job_ids: Sequence[str]) -> None:
    """Cancel jobs of this user; those that have ended are left as they are."""
    if job_ids:
        subprocess.run(["scancel", "--quiet", *job_ids], capture_output=True)


def still_queued(job_ids: Sequence[str]) -> list[str]:
    """Those of the jobs that wait or run, in the order given.

    Raises:
        UserError: when there is no squeue here, or with its own words when it cannot ask the controller.
    """
    if not job_ids:
        return []
    command = ["squeue", "--noheader", "--format=%F", f"--jobs={','.join(job_ids)}"]  # %F: an array's id
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise UserError("squeue was not found: run this on a login node of a Slurm cluster") from None
    # Slurm forgets a job some minutes after its end, and squeue calls that an error when it was asked for one job.
    if result.returncode != 0 and "Invalid job id" not in result.stderr:
        raise UserError(
            f"squeue failed, so it is not known whether jobs {' '.join(job_ids)} run: {result.stderr.strip()}"
        )
    found = set(result.stdout.split())
    return [job_id for job_id in job_ids if job_id in found]


def recorded_jobs(path: Path, stages: Sequence[str] = ()) -> list[str]:
    """The ids of jobs in a file that a submission has written; none if there is no such file.

    Args:
        stages: words that the file may have beside ids.

    Raises:
        UserError: if the file holds anything else, or cannot be read.
    """
    hint = "see in `squeue` whether jobs of this folder run, then delete the file"
    try:
        words = read_text(path, _MAX_JOBS_BYTES, hint).split()
    except MissingFile:
        return []
    ids = [word for word in words if word not in stages]
    if wrong := [word for word in ids if not _JOB_ID.fullmatch(word)]:
        raise unusable(path, f"{wrong[0][:30]!r} is not the id of a job", hint)
    return ids


def max_array_size() -> int:
    """The cluster's MaxArraySize, or Slurm's default where it cannot be asked."""
    try:
        result = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True)
    except FileNotFoundError:
        return MAX_ARRAY_SIZE
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", result.stdout, re.MULTILINE)
    return int(match[1]) if match else MAX_ARRAY_SIZE
