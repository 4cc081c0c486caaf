"""`maskwright prep verify`: read every byte of a data set and report damage."""

from pathlib import Path

import typer

from data_prep.errors import UserError, printable
from launchers.commands.arguments import DataSet, WorkerCount
from launchers.display import CommandProgress
from pretrain.distributed import Cores


def prep_verify(location: DataSet, workers: WorkerCount = None) -> None:
    """Read every byte of a data set and report all damage. Exit code 1 if it is damaged.

    Example: `maskwright prep verify data/books`
    """
    from data_prep.format import Dataset
    from data_prep.inspection import verify
    from data_prep.urls import is_url, shown

    if is_url(location):
        raise UserError(
            f"{shown(location)} is not on this machine. Copy the data set to a local folder and verify the copy."
        )
    folder = Path(location)
    problems = 0
    with CommandProgress() as line:
        for problem in verify(folder, workers or Cores.usable().number, line.rate("bytes")):
            typer.echo(printable(problem))
            problems += 1
    if problems:
        lines = "1 problem" if problems == 1 else f"{problems} problems"
        raise UserError(f"{folder} is damaged: {lines}; restore the files or prepare the data set again.")
    totals = Dataset(folder).manifest.totals
    typer.echo(f"{folder}: sound, {totals.documents:,} documents, {totals.tokens:,} tokens, {totals.blocks:,} blocks")
