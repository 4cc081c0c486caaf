"""`maskwright study run`: train the unfinished runs of a study."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_prep.common.errors import UserError
from data_prep.common.processes import die_with_parent, module_command
from launchers.commands.arguments import StudyArgument

if TYPE_CHECKING:
    from evaluation.study import Study

STOPPED = 75
_POLL_SECONDS = 1.0


def study_run(
    study: StudyArgument,
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

    with study_commands(study.folder) as maskwright, CommandProgress() as line:
        failed = run_study(study, maskwright, say, line.show, only)
    if only is None:
        print_report(study)
    if failed:
        more = f" (and {len(failed) - 1} more)" if failed[1:] else ""
        raise UserError(f"{failed[0]}{more}; run the same command to retry")


def print_report(study: "Study") -> None:
    """Write the report of a study and print it."""
    from evaluation.study import write_study_report

    page = write_study_report(study)
    print(page.with_name("report.md").read_text(), end="\n\n")
    print(page)


def say(line: str) -> None:
    """Print a line and flush."""
    print(line, flush=True)


@contextmanager
def study_commands(folder: Path) -> Iterator[Callable[..., int]]:
    """Return the function that runs the study's commands. A request to stop ends this process.

    The job is requeued if the study was asked to stop, for example by Slurm, but not if only a run was.
    """
    from evaluation.study import Stopped
    from launchers.slurm import queue_again

    try:
        with child_commands() as maskwright:
            yield maskwright
    except Stopped as stopped:
        print(f"stopped; `maskwright study run {folder}` resumes it", file=sys.stderr)
        if stopped.run is None:
            queue_again()
        sys.exit(STOPPED)


@contextmanager
def child_commands(program: Sequence[str] | None = None) -> Iterator[Callable[..., int]]:
    """Yield a function that runs commands as child processes, one at a time, with their output in a log file.

    A stop request goes to the running command. After it, the function raises Stopped and starts no more commands.
    """
    from evaluation.study import Stopped
    from launchers.local import on_stop_signals

    child: subprocess.Popen[bytes] | None = None
    requests: list[int] = []

    def stop(number: int) -> None:
        if not requests and child and child.poll() is None:
            child.terminate()
        requests.append(number)

    def run(words: Sequence[str], log: Path, look: Callable[[], None] = lambda: None) -> int:
        nonlocal child
        if requests:
            raise Stopped
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            child = subprocess.Popen(
                [*(program or module_command("launchers.cli")), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that only this process forwards Ctrl-C, once
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),
            )
            if requests:  # the request arrived before the process started
                child.terminate()
            while True:
                with suppress(subprocess.TimeoutExpired):
                    code = child.wait(_POLL_SECONDS)
                    break
                look()
        if requests:
            raise Stopped
        return code

    with on_stop_signals(stop):
        yield run
