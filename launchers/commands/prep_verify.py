"""`maskwright prep verify`: read every byte of a data set and report damage."""

import json
from pathlib import Path

import typer

from data_prep.common.errors import UserError, printable
from launchers.arguments import DataSet, JsonFlag, WorkerCount
from launchers.display import CommandProgress
from pretrain.distributed import Cores


def prep_verify(location: DataSet, workers: WorkerCount = None, json_format: JsonFlag = False) -> None:
    """Read every byte of a data set and report all damage. Exit code 1 if it is damaged.

    Example:

        maskwright prep verify data/demo/train
    """
    from data_prep.common.urls import is_url, shown
    from data_prep.format import Dataset
    from data_prep.inspection import verify_data_set

    if is_url(location):
        raise UserError(
            f"{shown(location)} is not on this machine. Copy the data set to a local folder and verify the copy."
        )
    folder = Path(location)
    problems = []
    with CommandProgress() as line:
        for problem in verify_data_set(folder, workers or Cores.usable().number, line.rate("bytes")):
            problems.append(problem)
            if not json_format:
                typer.echo(printable(problem))
    if json_format:
        typer.echo(json.dumps({"folder": str(folder), "problems": problems}, indent=1))
    if problems:
        lines = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise UserError(f"{folder} is damaged: {lines}; restore the files or prepare the data set again.")
    totals = Dataset(folder).manifest.totals
    counts = f"{totals.documents:,} documents, {totals.tokens:,} tokens, {totals.blocks:,} blocks"
    typer.echo(f"{folder}: sound, {counts}", err=json_format)
