"""`maskwright launch list`: list queued jobs and runs."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from data_prep.common.errors import UserError, working_directory
from launchers.commands.arguments import JsonFlag
from launchers.slurm import own_jobs
from launchers.watch import look, print_runs


def launch_list(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="FOLDER", help="folders of runs to list too, queued or not")
    ] = None,
    json_format: JsonFlag = False,
) -> None:
    """List your Maskwright jobs in Slurm's queue with their runs, and the runs in folders.

    Examples:

        maskwright launch list runs
        maskwright launch list --json
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
        other_jobs = [asdict(job) for job in others]
        print(json.dumps({"runs": [one.facts() for one in seen], "other_jobs": other_jobs}, indent=1))
    elif seen or others:
        print_runs(seen, others)
    else:
        print(f"no job of yours waits or runs{', and there are no runs' if folders else ''}")
