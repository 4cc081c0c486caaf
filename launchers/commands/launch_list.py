"""`maskwright launch list`: list queued jobs and runs."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from data_prep.errors import UserError, working_directory
from launchers.display import tables
from launchers.slurm import QueuedJob, own_jobs
from launchers.watch import PIPE_WIDTH, Seen, age_cell, as_json, number, place
from launchers.watch.run_table import look, step_cell


def launch_list(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[FOLDER]...", help="folders of runs to list too, queued or not")
    ] = None,
    json_format: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """List your Maskwright jobs in Slurm's queue with their runs, and the runs in folders.

    Examples:

        maskwright launch list

        maskwright launch list runs --json
    """
    from pretrain.reporting import runs_below

    jobs, problem = own_jobs()
    missing = next((folder for folder in folders or [] if not folder.is_dir()), None)
    if missing is not None:
        raise UserError(f"No folder {missing}{working_directory(missing)}. Name a folder of runs.")
    if problem and not folders:
        raise UserError(f"Cannot read Slurm's queue: {problem}. Name a folder to list the runs in it.")
    if problem:
        print(f"warning: cannot read Slurm's queue: {problem}", file=sys.stderr)
    below = [path for folder in folders or [] for path in runs_below(folder)]
    queued = [job.run for job in jobs if job.run is not None]
    runs = list({path.resolve(): path for path in [*below, *queued]}.values())
    seen = [look(run, jobs) for run in runs]
    others = [job for job in jobs if job.run is None]
    if json_format:
        print(as_json({"runs": [one.facts() for one in seen], "other_jobs": [_facts(job) for job in others]}))
    elif seen or others:
        _print(seen, others)
    else:
        print(
            "no job of yours waits or runs" if not folders else "no job of yours waits or runs, and there are no runs"
        )


def _facts(job: QueuedJob) -> dict[str, Any]:
    return asdict(job) | {"run": None}


def _print(seen: list[Seen], others: list[QueuedJob]) -> None:
    columns = ("job", "in the queue", "time", "run", "state", "step", "loss", "updated", "reason", "next")
    rows = []
    for one in seen:
        jobs: list[QueuedJob | None] = [*one.jobs] or [None]
        own = [place(one.summary.run), one.state, step_cell(one), number(one.summary.loss, ".4f"), age_cell(one)]
        rows += [[*_job(job), *own, one.reason, one.next_action] for job in jobs]
    rows += [[*_job(job), "", job.name, "", "", "", "", "none"] for job in others]
    texts = ("in the queue", "run", "state", "reason", "next")
    tables.output(PIPE_WIDTH).print(tables.table(columns, rows, texts=texts))


def _job(job: QueuedJob | None) -> list[str]:
    if job is None:
        return ["", "", ""]
    why = f" ({job.reason})" if job.waits else ""
    return [job.id, job.state.lower() + why, job.used]
