"""`maskwright study run`: do the runs of a study that are not done."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_prep.errors import UserError
from launchers.commands.arguments import StudyArgument
from launchers.commands.study_report import print_report

if TYPE_CHECKING:
    from evaluation.study import Maskwright, Study

STOPPED = 75


def study_run(
    study: StudyArgument,
    only: Annotated[list[int] | None, typer.Option(metavar="N", help="this run alone, from 1; may be repeated")] = None,
) -> None:
    """Go on with a study: the runs that are not done, then the report. With `--only`, some runs and no report.

    Examples:

        maskwright study run runs/study

        maskwright study run runs/study --only 3
    """
    from evaluation.study import open_unchanged

    run_to_report(study, open_unchanged(study), only)


def run_to_report(folder: Path, study: "Study", only: list[int] | None) -> None:
    """Do the runs of a study that are not done and write the report; or do those of `only`, without a report."""
    from evaluation.study.study_runner import run_study
    from launchers.display import CommandProgress

    with study_commands(folder) as maskwright, CommandProgress() as line:
        failed = run_study(folder, study, maskwright, say, line.show, only)
    if only is None:
        print_report(folder, study)
    if failed:
        more = f" (and {len(failed) - 1} more)" if failed[1:] else ""
        raise UserError(f"{failed[0]}{more}; the same command again tries what is not done")


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


@contextmanager
def study_commands(folder: Path) -> "Iterator[Maskwright]":
    """What runs the study's commands. A request to stop ends this process.

    The job is queued again where the study was asked to stop, as by Slurm, and not where a run of it was.
    """
    from evaluation.study import Commands, Stopped
    from launchers.local import on_stop_signals
    from launchers.slurm.study_array import queue_again

    try:
        with Commands(on_stop_signals) as maskwright:
            yield maskwright
    except Stopped as stopped:
        print(f"stopped; `maskwright study run {folder}` goes on", file=sys.stderr)
        if stopped.run is None:
            queue_again()
        sys.exit(STOPPED)
