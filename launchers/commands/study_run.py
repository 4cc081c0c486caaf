"""`maskwright study run`: train the unfinished runs of a study."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_prep.common.errors import UserError

if TYPE_CHECKING:
    from evaluation.study import Study


def study_run(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="study folder (run.dir of its config)")],
    only: Annotated[
        list[int] | None, typer.Option(metavar="N", help="train only this run, from 1; may be repeated")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="write the report of the finished runs, and train none")
    ] = False,
) -> None:
    """Resume a study: train the unfinished runs, then write the report. With `--only`, train some runs, no report.

    Examples:

        maskwright study run runs/study
        maskwright study run runs/study --only 3
        maskwright study run runs/study --report
    """
    from evaluation.study import Study, open_unchanged

    if report:
        if only is not None:
            raise UserError("--report trains no run. Remove --only.")
        print_report(Study.open(study))
        return
    run_to_report(open_unchanged(study), only)


def run_to_report(study: "Study", only: list[int] | None) -> None:
    """Train the unfinished runs of a study and write the report. With `only`, train those runs without a report."""
    from evaluation.study import run_study
    from launchers.display import CommandProgress

    with study_commands(study.folder) as maskwright, CommandProgress("looking at the finished runs") as line:
        failed = run_study(study, maskwright, line.say, line.show, only)
    if only is None:
        print_report(study)
    if failed:
        more = f" (and {len(failed) - 1} more)" if failed[1:] else ""
        raise UserError(f"{failed[0]}{more}; run the same command to retry")


def print_report(study: "Study") -> None:
    """Write the report of a study and print it."""
    from rich.markdown import Markdown

    from data_prep.common.errors import without_controls
    from evaluation.study import write_study_report
    from launchers.display import text_console

    page = write_study_report(study)
    text, console = without_controls(page.with_name("report.md").read_text(), keep="\n"), text_console()
    if console.is_terminal:
        console.print(Markdown(text, hyperlinks=False))
    else:
        print(text)
    print(page)


@contextmanager
def study_commands(folder: Path) -> Iterator[Callable[..., int]]:
    """Return the function that runs the study's commands. A request to stop ends this process.

    The job is requeued if the study was asked to stop, for example by Slurm, but not if only a run was.
    """
    from evaluation.study import Stopped
    from launchers.local import child_commands
    from launchers.slurm import queue_again
    from pretrain.run import EXIT_CODES

    try:
        with child_commands() as maskwright:
            yield maskwright
    except Stopped as stopped:
        print(f"stopped; `maskwright study run {folder}` resumes it", file=sys.stderr)
        if stopped.run is None:
            queue_again()
        sys.exit(EXIT_CODES["stopped"])
