"""Data preparation as Slurm job arrays: tasks of the elements, batch scripts, and submission.

The stages are scan, resolve, task and merge, in this order by Slurm's dependencies. Complete stages are left out.
"""

import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.files import write_file
from data_prep.common.processes import module_command
from launchers.slurm import client
from launchers.slurm.batch_script import batch_script, log_pattern
from launchers.slurm.job_chain import ChainedJob, refuse_while_queued, submit_chain
from pretrain.config import ClusterConfig

MOST_ELEMENTS = 1000
CORE_BYTES = 2_000_000_000
MOST_CORE_TASKS = 64


@dataclass(frozen=True)
class ArrayStage:
    """A stage of a preparation: a job array with the tasks of each element, or one job if there are no elements."""

    name: str
    elements: list[list[int]]


@dataclass(frozen=True)
class PrepArray:
    """Settings of the batch scripts. Paths are absolute and on shared storage."""

    out: Path
    working_dir: Path
    python: Path
    cpus: int
    cluster: ClusterConfig

    @property
    def folder(self) -> Path:
        """Folder of the logs, with a subfolder for each submission."""
        return self.out / "prep" / "slurm"

    def submission(self, number: int) -> Path:
        """Folder of a submission; they count from 1."""
        return self.folder / f"submission-{number:04}"

    @property
    def last_number(self) -> int:
        """Number of the last submission; 0 before the first."""
        folders = self.folder.glob("submission-[0-9][0-9][0-9][0-9]")
        return max((int(folder.name.removeprefix("submission-")) for folder in folders), default=0)


def launch_array(out: Path, cpus: int, cluster: ClusterConfig, per_element: int | None, dry_run: bool) -> None:
    """Submit the incomplete stages of a plan and print the jobs, or print only what would be submitted.

    Args:
        out: folder of the plan.
        cpus: cores of an array element.
        per_element: tasks of an array element; None for a few minutes of work.

    Raises:
        UserError: if OUT has no plan, Slurm is missing or refuses a job, or jobs of this plan are queued.
    """
    array = PrepArray(out.absolute(), Path.cwd(), Path(os.path.abspath(sys.executable)), cpus, cluster)
    stages = _incomplete_stages(array, per_element)
    if not stages:
        print(f"{array.out} is complete: nothing was submitted.")
        return
    planned = jobs(stages, client.max_array_size())
    last = array.last_number
    folder = array.submission(last + 1)
    if dry_run:
        _print_all(stages, planned, array, folder)
        return
    client.check_available()
    refuse_while_queued(array.submission(last), array.out)  # earlier submissions are finished
    write_scripts(stages, array, folder)
    _report(stages, submit_chain(planned, folder), array)


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
    previous one, even if that failed: resolve and merge then report incomplete tasks. Only the tasks after a
    failed resolve are cancelled.
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
    names = shlex.quote(str(folder / f"{stage.name}.txt"))
    command_name = "merge" if stage.name == "merge" else "task"
    prep = shlex.join(module_command("launchers.cli", "prep", command_name, str(array.out), python=str(array.python)))
    options = "" if stage.name in ("task", "merge") else f" --stage {stage.name}"
    options += "" if stage.name == "resolve" else f" --workers {array.cpus}"
    start = f'echo "job $SLURM_JOB_ID (start $((${{SLURM_RESTART_COUNT:-0}} + 1))) on $(hostname): prep {stage.name}'
    command = f'{start}"\nexec {prep}{options}'
    if stage.elements:  # the tasks of an element are on its line of the list
        command = f'''list={names}
line=$((${{1:-0}} + SLURM_ARRAY_TASK_ID))
read -ra tasks < <(sed -n "${{line}}p" "$list") || {{ echo "error: $list has no line $line" >&2; exit 1; }}
{start} ${{tasks[*]}}"
exec {prep} "${{tasks[@]}}"{options}'''
    return batch_script(
        array.cluster,
        purpose=f"Stage {stage.name} of a preparation, written by `maskwright launch prep`. Finished tasks are kept.",
        options={
            "job-name": f"{array.cluster.job_name or array.out.name}-{stage.name}",
            "comment": client.COMMENT,
            "output": log_pattern(array.folder, "%A_%a.log" if stage.elements else "%j.log"),
            "nodes": "1",
            "ntasks": "1",
            "cpus-per-task": str(array.cpus),
        },
        python=array.python,
        working_dir=array.working_dir,
        command=command,
        warns=False,
    )


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
            write_file(folder / name, text.encode())
    except FileExistsError:
        raise UserError(f"{folder} has just been made by another submission; see `squeue`") from None
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be written ({error.strerror})") from None


def list_text(stage: ArrayStage) -> str:
    """The list of an array: one line of task numbers per element."""
    return "".join(" ".join(map(str, tasks)) + "\n" for tasks in stage.elements)


def _incomplete_stages(array: PrepArray, per_element: int | None) -> list[ArrayStage]:
    """The stages to run, in order; empty if the data set is complete.

    Raises:
        UserError: if OUT has no plan, or a damaged one.
    """
    from data_prep.jobs import unfinished_stages

    stages = []
    for name, tasks in unfinished_stages(array.out).items():
        per_job = per_element or tasks_per_element(len(tasks), sum(tasks.values()), array.cpus)
        stages.append(ArrayStage(name, elements(list(tasks), per_job)))
    return stages


def _print_all(stages: list[ArrayStage], planned: list[ChainedJob], array: PrepArray, folder: Path) -> None:
    """Print the files to write, and the shell commands with job ids in variables."""
    for stage in stages:
        if stage.elements:
            lines = list_text(stage).splitlines()
            print(f"# {folder / stage.name}.txt: {len(lines):,} lines of task numbers, the first {lines[0]}")
        print(f"# {folder / stage.name}.sh:\n{render(stage, array, folder)}")
    ids: dict[str, list[str]] = {}
    for number, job in enumerate(planned, 1):
        script = shlex.quote(str(folder / f"{job.stage}.sh"))
        words = ["sbatch --parsable", *job.options(ids), script, *job.arguments]
        print(f"job{number}=$({' '.join(words)})")
        ids.setdefault(job.stage, []).append(f"$job{number}")


def _report(stages: list[ArrayStage], ids: dict[str, list[str]], array: PrepArray) -> None:
    for stage in stages:
        tasks = sum(map(len, stage.elements))
        work = f": {tasks:,} tasks in {len(stage.elements):,} array elements" if tasks else ""
        print(f"Submitted {stage.name} as job {' '.join(ids[stage.name])}{work}.")
    everything = [job_id for stage in stages for job_id in ids[stage.name]]
    logs = shlex.quote(str(array.folder))
    print(f"  state   squeue --jobs {','.join(everything)}")
    print(f"  result  {logs}/{ids['merge'][0]}.log")
    print(f"  logs    {logs}/JOB_ELEMENT.log")
    print(f"  cancel  scancel {' '.join(everything)}")
