"""Data preparation as Slurm job arrays: tasks of the elements, batch scripts, and submission.

The stages are scan, resolve, task and merge, in this order by Slurm's dependencies. Complete stages are left out.
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
    """`maskwright prep NAME`: a job array with the tasks of each element, or one job if there are no elements."""

    name: str
    elements: list[list[int]]


@dataclass(frozen=True)
class PrepArray:
    """Settings of the batch scripts. Paths are absolute and on shared storage."""

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
        """Folder of the logs, with a subfolder for each submission."""
        return self.out / "prep" / "slurm"


def tasks_per_element(count: int, total_bytes: int, cpus: int) -> int:
    """Default number of tasks of an array element.

    About CORE_BYTES of input a core, so that starting is a small part of an element's time, but at most MOST_CORE_TASKS
    tasks a core; no fewer than one a core; and so many that there are at most MOST_ELEMENTS elements.
    """
    by_bytes = math.ceil(count * cpus * CORE_BYTES / max(total_bytes, 1))
    return max(cpus, min(by_bytes, MOST_CORE_TASKS * cpus), math.ceil(count / MOST_ELEMENTS))


def elements(tasks: Sequence[int], per_element: int) -> list[list[int]]:
    """The tasks in groups of `per_element`, in order; the last may be smaller."""
    return [list(tasks[first : first + per_element]) for first in range(0, len(tasks), per_element)]


def jobs(stages: Sequence[ArrayStage], max_array_size: int) -> list[ChainedJob]:
    """The jobs to submit, in order. Array indices start at 1 and stay below `max_array_size`.

    The argument of an array's script is the number of elements in earlier arrays of its stage. A stage starts after the
    previous one, even if that failed: `prep resolve` and `prep merge` then report incomplete tasks. Only the tasks
    after a failed `resolve` are cancelled.
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
    """Render a stage's batch script for the submission in `folder`.

    Raises:
        UserError: if a value is invalid in an `#SBATCH` line.
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
    """The folder of the next submission."""
    last = [int(folder.name.removeprefix("submission-")) for folder in submission_folders(array)[-1:]]
    return array.folder / f"submission-{sum(last) + 1:04}"


def refuse_while_prepared(array: PrepArray) -> None:
    """Raise UserError if jobs of the last submission are pending or running. Earlier submissions are finished."""
    for folder in submission_folders(array)[-1:]:
        refuse_while_queued(folder, array.out)


def write_scripts(stages: Sequence[ArrayStage], array: PrepArray, folder: Path) -> None:
    """Write FOLDER/STAGE.sh for each stage and, for arrays, STAGE.txt with one line of task numbers per element.

    Raises:
        UserError: if they cannot be written, or another submission has just created this folder.
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
    """The list of an array: one line of task numbers per element."""
    return "".join(" ".join(map(str, tasks)) + "\n" for tasks in stage.elements)
