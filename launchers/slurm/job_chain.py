"""Chains of dependent jobs: submit all or none, and refuse a second submission while they are queued."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.common.errors import MissingFile, UserError
from data_prep.common.reading import read_text, unusable
from launchers.slurm import client

_MAX_JOBS_BYTES = 1 << 20
_JOB_ID = re.compile(r"[1-9][0-9]{0,18}")
_STAGE = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class ChainedJob:
    """One call of sbatch for the script STAGE.sh of a folder. Several jobs may share a stage.

    Args:
        array: indices of a job array, in sbatch's format.
        arguments: arguments of the script.
        after: stage whose jobs must finish first, successfully if `needs_success`.
    """

    stage: str
    array: str | None = None
    arguments: tuple[str, ...] = ()
    after: str | None = None
    needs_success: bool = False

    def options(self, ids: Mapping[str, Sequence[str]]) -> list[str]:
        """The options of sbatch; `ids` holds the job ids of each earlier stage."""
        options = [f"--array={self.array}"] if self.array else []
        if self.after and self.needs_success:
            options += [f"--dependency=afterok:{':'.join(ids[self.after])}", "--kill-on-invalid-dep=yes"]
        elif self.after:
            options.append(f"--dependency=afterany:{':'.join(ids[self.after])}")
        return options


def submit_chain(jobs: Sequence[ChainedJob], folder: Path) -> dict[str, list[str]]:
    """Submit the jobs, write their ids to FOLDER/jobs, and return the ids of each stage.

    Raises:
        UserError: if sbatch refuses a job; the jobs before it are cancelled.
    """
    ids: dict[str, list[str]] = {}
    try:
        with open(folder / "jobs", "w") as file:
            for job in jobs:
                job_id = client.submit(folder / f"{job.stage}.sh", job.options(ids), job.arguments)
                ids.setdefault(job.stage, []).append(job_id)
                file.write(f"{job.stage} {job_id}\n")
                file.flush()
    except BaseException:
        client.cancel([job_id for stage in ids.values() for job_id in stage])
        raise
    return ids


def refuse_while_queued(folder: Path, subject: Path) -> None:
    """Raise UserError if jobs of FOLDER/jobs are pending or running. `subject` names their work in the message."""
    if queued := client.still_queued(recorded_jobs(folder / "jobs")):
        ids = " ".join(queued)
        raise UserError(
            f"Jobs {ids} of {subject} wait or run ({folder}). Wait for them, or cancel them with `scancel {ids}`."
        )


def recorded_jobs(path: Path) -> list[str]:
    """Read the job ids from a file written by `submit_chain`; empty if there is no file.

    Raises:
        UserError: if the file cannot be read, or is damaged.
    """
    hint = "see in `squeue` whether jobs of this folder run, then delete the file"
    try:
        words = read_text(path, _MAX_JOBS_BYTES, hint).split()
    except MissingFile:
        return []
    ids = [word for word in words if not _STAGE.fullmatch(word)]
    if wrong := [word for word in ids if not _JOB_ID.fullmatch(word)]:
        raise unusable(path, f"{wrong[0][:30]!r} is not the id of a job", hint)
    return ids
