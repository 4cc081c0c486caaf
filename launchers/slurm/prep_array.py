"""A preparation as Slurm job arrays: which elements do which tasks, the batch scripts, and their submission.

The stages follow one another, scan, resolve, task, merge, by Slurm's dependencies; what is complete is left out.
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import UserError
from data_prep.files import atomic_writer
from launchers.slurm.job_chain import ChainedJob, refuse_while_queued
from launchers.slurm.script_template import Template, directives, log_pattern

MOST_ELEMENTS = 1000
CORE_BYTES = 2_000_000_000
MOST_CORE_TASKS = 64


@dataclass(frozen=True)
class ArrayStage:
    """`maskwright prep NAME`: an array whose elements do these tasks each or, without elements, one job."""

    name: str
    elements: list[list[int]]


@dataclass(frozen=True)
class PrepArray:
    """What the batch scripts say besides the tasks. Paths are absolute, and on storage that all nodes share."""

    out: Path
    working_dir: Path
    python: Path
    cpus: int
    job_name: str
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    mem: str | None = None

    @property
    def folder(self) -> Path:
        """Where the logs are kept, and a folder for each submission."""
        return self.out / "prep" / "slurm"


def tasks_per_element(count: int, total_bytes: int, cpus: int) -> int:
    """How many tasks an array element does by default.

    About CORE_BYTES of input a core, so that starting is a small part of an element's time, but at most MOST_CORE_TASKS
    tasks a core; no fewer than one a core; and so many that there are at most MOST_ELEMENTS elements.
    """
    by_bytes = math.ceil(count * cpus * CORE_BYTES / max(total_bytes, 1))
    return max(cpus, min(by_bytes, MOST_CORE_TASKS * cpus), math.ceil(count / MOST_ELEMENTS))


def elements(tasks: Sequence[int], per_element: int) -> list[list[int]]:
    """The tasks in groups of `per_element`, in order; the last may be smaller."""
    return [list(tasks[first : first + per_element]) for first in range(0, len(tasks), per_element)]


def jobs(stages: Sequence[ArrayStage], max_array_size: int) -> list[ChainedJob]:
    """The jobs to submit, in order. Indices of an array run from 1, and stay below `max_array_size`.

    The argument of an array's script is how many elements of its stage earlier arrays have. A stage waits for the end
    of the one before, however it ends: `prep resolve` and `prep merge` then report what is incomplete. Only tasks
    after a failed `resolve` could do nothing, and are cancelled.
    """
    made = []
    before: str | None = None
    for stage in stages:
        count, most, needs_success = len(stage.elements), max_array_size - 1, before == "resolve"
        if not stage.elements:
            made.append(ChainedJob(stage.name, after=before, needs_success=needs_success))
        for first in range(0, count, most):
            array = f"1-{min(most, count - first)}"
            made.append(ChainedJob(stage.name, array, (str(first),), before, needs_success))
        before = stage.name
    return made


def render(stage: ArrayStage, array: PrepArray, folder: Path) -> str:
    """The text of a stage's batch script, for the submission that is kept in `folder`.

    Raises:
        UserError: when a value cannot stand in an `#SBATCH` line.
    """
    options = {
        "job-name": f"{array.job_name}-{stage.name}",
        "output": log_pattern(array.folder, "%A_%a.log" if stage.elements else "%j.log"),
        "partition": array.partition,
        "account": array.account,
        "time": array.time,
        "mem": array.mem,
    }
    return Template.load("prep_array.sh" if stage.elements else "prep_step.sh").substitute(
        directives=directives(options),
        cpus=array.cpus,
        command=stage.name,
        out=shlex.quote(str(array.out)),
        python=shlex.quote(str(array.python)),
        working_dir=shlex.quote(str(array.working_dir)),
        list=shlex.quote(str(folder / f"{stage.name}.txt")),
        workers='--workers "$SLURM_CPUS_PER_TASK"' if stage.name != "resolve" else "",
    )


def submission_folders(array: PrepArray) -> list[Path]:
    """The folders of all submissions, oldest first."""
    return sorted(array.folder.glob("submission-[0-9][0-9][0-9][0-9]"))


def next_folder(array: PrepArray) -> Path:
    """The folder that the next submission is to have."""
    last = [int(folder.name.removeprefix("submission-")) for folder in submission_folders(array)[-1:]]
    return array.folder / f"submission-{sum(last) + 1:04}"


def refuse_while_prepared(array: PrepArray) -> None:
    """Raise UserError if jobs of the last submission wait or run; earlier ones had ended when it was made."""
    for folder in submission_folders(array)[-1:]:
        refuse_while_queued(folder, array.out)


def write_scripts(stages: Sequence[ArrayStage], array: PrepArray, folder: Path) -> None:
    """Write FOLDER/STAGE.sh for each stage and, for arrays, STAGE.txt with the task numbers of an element a line.

    Raises:
        UserError: when they cannot be written, or another submission has just taken this folder.
    """
    texts = {f"{stage.name}.sh": render(stage, array, folder) for stage in stages}
    texts |= {f"{stage.name}.txt": list_text(stage) for stage in stages if stage.elements}
    try:
        array.folder.mkdir(exist_ok=True)
        folder.mkdir()
        for name, text in texts.items():
            with atomic_writer(folder / name) as file:
                file.write(text.encode())
    except FileExistsError:
        raise UserError(f"{folder} has just been made by another submission; see `squeue`") from None
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be written ({error.strerror})") from None


def list_text(stage: ArrayStage) -> str:
    """The list of an array: the task numbers of one element a line."""
    return "".join(" ".join(map(str, tasks)) + "\n" for tasks in stage.elements)
