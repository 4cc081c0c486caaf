"""Chains of dependent jobs: submit all or none, and refuse a second submission while they are queued."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.common.errors import MissingFile, UserError
from data_prep.common.files import write_file
from data_prep.common.reading import read_text, unusable
from launchers.slurm import client

_MAX_JOBS_BYTES = 1 << 20
_JOB_ID = re.compile(r"[1-9][0-9]{0,18}")
_STAGE = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class ChainedJob:
    """One call of sbatch for the script STAGE.sh of a folder.

    Args:
        array: indices of a job array, in sbatch's format.
        after: stage that must finish first, successfully if `needs_success`.
    """

    stage: str
    array: str | None = None
    after: str | None = None
    needs_success: bool = False

    def options(self, ids: Mapping[str, str]) -> list[str]:
        """The options of sbatch; `ids` holds the job id of each earlier stage."""
        options = [f"--array={self.array}"] if self.array else []
        if self.after and self.needs_success:
            options += [f"--dependency=afterok:{ids[self.after]}", "--kill-on-invalid-dep=yes"]
        elif self.after:
            options.append(f"--dependency=afterany:{ids[self.after]}")
        return options


@dataclass(frozen=True)
class JobChain:
    """Jobs in order, and the texts of the files in `folder` that they need: STAGE.sh for each stage, and lists."""

    folder: Path
    files: Mapping[str, str]
    jobs: Sequence[ChainedJob]

    def show(self) -> None:
        """Print the files to write, of lists the first line, and the shell commands with job ids in variables."""
        for name, text in self.files.items():
            lines = text.splitlines()
            listed = f" {len(lines):,} lines, the first {lines[0]}"
            print(f"# {self.folder / name}:" + (f"\n{text}" if name.endswith(".sh") else listed))
        ids: dict[str, str] = {}
        for number, job in enumerate(self.jobs, 1):
            script = shlex.quote(str(self.folder / f"{job.stage}.sh"))
            print(f"job{number}=$({' '.join(['sbatch --parsable', *job.options(ids), script])})")
            ids[job.stage] = f"$job{number}"

    def submit(self) -> dict[str, str]:
        """Write the files, submit the jobs and print them. Writes their ids to FOLDER/jobs, and returns them by stage.

        Raises UserError if a file cannot be written, or sbatch refuses a job; the jobs before it are cancelled.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, text in self.files.items():
                write_file(self.folder / name, text.encode())
        except OSError as error:
            raise UserError(f"{error.filename or self.folder} cannot be written ({error.strerror})") from None
        ids: dict[str, str] = {}
        try:
            with open(self.folder / "jobs", "w") as file:
                for job in self.jobs:
                    ids[job.stage] = client.submit(self.folder / f"{job.stage}.sh", job.options(ids))
                    file.write(f"{job.stage} {ids[job.stage]}\n")
                    file.flush()
        except BaseException:
            client.cancel([*ids.values()])
            raise
        for job in self.jobs:
            print(f"Submitted {job.stage} as job {ids[job.stage]}{f', array {job.array}' if job.array else ''}.")
        print(f"  state   squeue --jobs {','.join(ids.values())}")
        print(f"  cancel  scancel {' '.join(ids.values())}")
        return ids


def refuse_while_queued(folder: Path, subject: Path) -> None:
    """Raise UserError if jobs of FOLDER/jobs are pending or running. `subject` names their work in the message."""
    if queued := client.still_queued(recorded_jobs(folder / "jobs")):
        ids = " ".join(queued)
        raise UserError(
            f"Jobs {ids} of {subject} wait or run ({folder}). Wait for them, or cancel them with `scancel {ids}`."
        )


def recorded_jobs(path: Path) -> list[str]:
    """Read the job ids from a file written by `JobChain.submit`; empty if there is no file.

    Raises UserError if the file cannot be read, or is damaged.
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
