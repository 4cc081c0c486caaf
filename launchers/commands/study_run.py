"""`maskwright study run`: train the unfinished runs of a study."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_prep.errors import UserError
from launchers.commands.arguments import StudyArgument
from launchers.commands.study_report import print_report

if TYPE_CHECKING:
    from evaluation.study import Study

STOPPED = 75


def study_run(
    study: StudyArgument,
    only: Annotated[
        list[int] | None, typer.Option(metavar="N", help="train only this run, from 1; may be repeated")
    ] = None,
) -> None:
    """Resume a study: train the unfinished runs, then write the report. With `--only`, train some runs, no report.

    Examples:

        maskwright study run runs/study

        maskwright study run runs/study --only 3
    """
    from evaluation.study import open_unchanged

    run_to_report(study, open_unchanged(study), only)


def run_to_report(folder: Path, study: "Study", only: list[int] | None) -> None:
    """Train the unfinished runs of a study and write the report. With `only`, train those runs without a report."""
    from evaluation.study import run_study
    from launchers.display import CommandProgress

    with study_commands(folder) as maskwright, CommandProgress() as line:
        failed = run_study(folder, study, maskwright, say, line.show, only)
    if only is None:
        print_report(folder, study)
    if failed:
        more = f" (and {len(failed) - 1} more)" if failed[1:] else ""
        raise UserError(f"{failed[0]}{more}; run the same command to retry")


def say(line: str) -> None:
    """Print a line and flush."""
    print(line, flush=True)


@contextmanager
def study_commands(folder: Path) -> Iterator[Callable[..., int]]:
    """Return the function that runs the study's commands. A request to stop ends this process.

    The job is requeued if the study was asked to stop, for example by Slurm, but not if only a run was.
    """
    from evaluation.study import Stopped, child_commands
    from launchers.local import on_stop_signals
    from launchers.slurm import queue_again

    try:
        with child_commands(on_stop_signals) as maskwright:
            yield maskwright
    except Stopped as stopped:
        print(f"stopped; `maskwright study run {folder}` resumes it", file=sys.stderr)
        if stopped.run is None:
            queue_again()
        sys.exit(STOPPED)
