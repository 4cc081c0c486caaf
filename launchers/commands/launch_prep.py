"""`maskwright launch prep`: prepare data with Slurm job arrays."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from launchers.slurm import check_available, max_array_size
from launchers.slurm.job_chain import ChainedJob, submit_chain
from launchers.slurm.prep_array import (
    ArrayStage,
    PrepArray,
    elements,
    jobs,
    list_text,
    next_folder,
    refuse_while_prepared,
    render,
    tasks_per_element,
    write_scripts,
)


def launch_prep(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="folder with a plan", show_default=False)],
    cpus: Annotated[int, typer.Option(min=1, help="cores and worker processes of an array element")] = 4,
    tasks_per_job: Annotated[
        int | None, typer.Option(min=1, help="tasks of an array element; by default a few minutes of work")
    ] = None,
    job_name: Annotated[str | None, typer.Option(help="job name; by default the name of OUT")] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm partition")] = None,
    account: Annotated[str | None, typer.Option(help="Slurm account")] = None,
    time: Annotated[str | None, typer.Option(help="time limit of each job, in sbatch's format")] = None,
    mem: Annotated[
        str | None, typer.Option(help="memory of each job, in sbatch's format; 1G per core is enough")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the job scripts and the sbatch commands, and do nothing else")
    ] = False,
) -> None:
    """Prepare data on Slurm: submit the incomplete tasks of a plan as job arrays, and a final job that merges them.

    First make the plan with `maskwright prep plan`. OUT, the inputs and this Python environment must be on storage that
    all nodes share. The merge job lists incomplete tasks; run the same command again to submit only those. Set other
    sbatch options with sbatch's environment variables, such as SBATCH_QOS.

    Examples:

      maskwright launch prep data/books --cpus 8 --partition cpu --time 2:00:00

      maskwright launch prep data/books --cpus 8 --tasks-per-job 64 --dry-run
    """
    array = PrepArray(
        out=out.absolute(),
        working_dir=Path.cwd(),
        python=Path(os.path.abspath(sys.executable)),
        cpus=cpus,
        job_name=job_name or out.absolute().name,
        partition=partition,
        account=account,
        time=time,
        mem=mem,
    )
    stages = _incomplete_stages(array, tasks_per_job)
    if not stages:
        print(f"{out} is complete: nothing was submitted.")
        return
    planned = jobs(stages, max_array_size())
    folder = next_folder(array)
    if dry_run:
        _print_all(stages, planned, array, folder)
        return
    check_available()
    refuse_while_prepared(array)
    write_scripts(stages, array, folder)
    _report(stages, submit_chain(planned, folder), array)


def _incomplete_stages(array: PrepArray, per_element: int | None) -> list[ArrayStage]:
    """The stages to run, in order; empty if the data set is complete.

    Raises:
        UserError: if OUT has no plan, or a damaged one.
    """
    from data_prep.jobs import read_plan, resolved
    from data_prep.jobs.prepare import finished, incomplete

    plan = read_plan(array.out)

    def stage(name: str, tasks: list[int]) -> ArrayStage:
        total = sum(plan.tasks[task].bytes for task in tasks)
        return ArrayStage(name, elements(tasks, per_element or tasks_per_element(len(tasks), total, array.cpus)))

    stages = []
    if plan.settings.deduplicate != "none":
        if scans := incomplete(array.out, "scan"):
            stages.append(stage("scan", scans))
        if scans or not resolved(plan, array.out):
            stages.append(ArrayStage("resolve", []))
    if tasks := incomplete(array.out, "task"):
        stages.append(stage("task", tasks))
    if stages or finished(plan, array.out) is None:
        stages.append(ArrayStage("merge", []))
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
