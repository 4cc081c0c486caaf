"""Data preparation as Slurm job arrays: tasks of the elements, batch scripts, and submission.

The stages are scan, resolve, task and merge, in this order by Slurm's dependencies. Complete stages are left out. An
element of resolve has ranges of hashes, the others have tasks.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.processes import module_command
from launchers.slurm import client
from launchers.slurm.batch_script import batch_script, log_pattern
from launchers.slurm.job_chain import ChainedJob, JobChain, refuse_while_queued
from pretrain.config import ClusterConfig

CORE_BYTES = 2_000_000_000
MOST_CORE_TASKS = 64


@dataclass(frozen=True)
class PrepArray:
    """Settings of the batch scripts. `out`, the folder of the plan, is absolute and on shared storage.

    `memory_gb` is the memory of each process that finds duplicates. `filters` are those from outside that the user has
    named; see Cleaning.check_named.
    """

    out: Path
    cpus: int
    cluster: ClusterConfig
    memory_gb: float
    filters: Sequence[str] = ()

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

    def chain(self, stages: Mapping[str, list[list[int]]]) -> JobChain:
        """The jobs and files of a new submission.

        Args:
            stages: the tasks of each element of an array, by stage; a stage without elements is one job.

        Raises:
            UserError: if a value is invalid in an `#SBATCH` line.
        """
        folder, files = self.submission(self.last_number + 1), {}
        for stage, of_stage in stages.items():
            if of_stage:
                files[f"{stage}.txt"] = "".join(" ".join(map(str, tasks)) + "\n" for tasks in of_stage)
            files[f"{stage}.sh"] = self._script(stage, folder / f"{stage}.txt" if of_stage else None)
        return JobChain(folder, files, jobs(stages))

    def _script(self, stage: str, tasks: Path | None) -> str:
        """The batch script of a stage. tasks: the list of an array, with one line of task numbers per element."""
        words = ["prep", "merge" if stage == "merge" else "task", str(self.out)]
        words += ["--stage", stage] if stage in ("scan", "resolve") else []
        words += ["--memory-gb", f"{self.memory_gb:g}"] if stage == "resolve" else []
        words += ["--workers", str(self.cpus)]
        if stage in ("scan", "task"):
            words += [*(word for text in self.filters for word in ("--filter", text)), "--yes"]  # launch_array checked
        prep = shlex.join(module_command("launchers.cli", *words))
        start = f'echo "job $SLURM_JOB_ID (start $((${{SLURM_RESTART_COUNT:-0}} + 1))) on $(hostname): prep {stage}'
        command = f'{start}"\nexec {prep}'
        if tasks:
            command = f'''list={shlex.quote(str(tasks))}
line=$SLURM_ARRAY_TASK_ID
read -ra tasks < <(sed -n "${{line}}p" "$list") || {{ echo "error: $list has no line $line" >&2; exit 1; }}
{start} ${{tasks[*]}}"
exec {prep} "${{tasks[@]}}"'''
        return batch_script(
            self.cluster,
            purpose=f"Stage {stage} of a preparation, written by `maskwright launch prep`. Finished tasks are kept.",
            options={
                "job-name": f"{self.cluster.job_name or self.out.name}-{stage}",
                "comment": client.COMMENT,
                "output": log_pattern(self.folder, "%A_%a.log" if tasks else "%j.log"),
                "nodes": "1",
                "ntasks": "1",
                "cpus-per-task": str(self.cpus),
            },
            command=command,
            warns=False,
        )


def launch_array(array: PrepArray, per_element: int | None, dry_run: bool, trusted: bool = False) -> None:
    """Submit the incomplete stages of a plan and print the jobs, or print only what would be submitted.

    Args:
        per_element: tasks or ranges of an array element; None for a few minutes of work.
        trusted: see PreparationContext.

    Raises:
        UserError: if OUT has no plan, Slurm is missing or refuses a job, jobs of this plan are queued, or `per_element`
            makes more elements than an array may have.
    """
    from data_prep.jobs import unfinished_stages

    most, unfinished = client.max_array_size() - 1, unfinished_stages(array.out, array.filters, trusted)
    if most < 1:
        raise UserError("This cluster has no job arrays (MaxArraySize in scontrol show config). Use prep run in a job.")
    needed = max((math.ceil(len(tasks) / most) for tasks in unfinished.values()), default=1)
    if per_element and per_element < needed:
        raise UserError(
            f"--tasks-per-job {per_element} makes more than {most:,} elements, the most of an array here. "
            f"Write {needed} or more."
        )
    stages = {}
    for stage, tasks in unfinished.items():
        per_job = per_element or tasks_per_element(len(tasks), sum(tasks.values()), array.cpus, most)
        stages[stage] = elements(list(tasks), per_job)
    if not stages:
        print(f"{array.out} is complete: nothing was submitted.")
        return
    chain = array.chain(stages)
    if dry_run:
        chain.show()
        return
    client.check_available()
    refuse_while_queued(array.submission(array.last_number), array.out)  # earlier submissions are finished
    make_submission(chain.folder)
    ids = chain.submit()
    logs = shlex.quote(str(array.folder))
    print(f"  result  {logs}/{ids['merge']}.log")
    print(f"  logs    {logs}/JOB_ELEMENT.log")


def make_submission(folder: Path) -> None:
    """Make the folder of a submission. Raises UserError if another submission has just made it."""
    try:
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        raise UserError(f"{folder} has just been made by another submission; see `squeue`") from None
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be written ({error.strerror})") from None


def tasks_per_element(count: int, total_bytes: int, cpus: int, most_elements: int) -> int:
    """Default number of tasks of an array element.

    About CORE_BYTES of input a core, so that starting is a small part of an element's time, but at most MOST_CORE_TASKS
    tasks a core; no fewer than one a core; and so many that there are at most `most_elements`.
    """
    by_bytes = math.ceil(count * cpus * CORE_BYTES / max(total_bytes, 1))
    return max(cpus, min(by_bytes, MOST_CORE_TASKS * cpus), math.ceil(count / most_elements))


def elements(tasks: Sequence[int], per_element: int) -> list[list[int]]:
    """The tasks in groups of `per_element`, in order; the last may be smaller."""
    return [list(tasks[first : first + per_element]) for first in range(0, len(tasks), per_element)]


def jobs(stages: Mapping[str, list[list[int]]]) -> list[ChainedJob]:
    """The job of each stage, in order; array indices start at 1.

    A stage starts after the previous one, even if that failed: resolve and merge then report incomplete tasks. Only the
    tasks after a resolve with a failed element are cancelled.
    """
    names = list(stages)
    return [
        ChainedJob(stage, f"1-{len(stages[stage])}" if stages[stage] else None, before, before == "resolve")
        for stage, before in zip(names, [None, *names], strict=False)
    ]
