"""`maskwright status`: show the state of runs."""

import json
import sys
from typing import Annotated

import typer

from data_prep.common.errors import UserError
from launchers.arguments import JsonFlag, RunsArgument
from launchers.watch import follow_runs, print_run, print_runs, view_runs


def status(
    run: RunsArgument,
    json_format: JsonFlag = False,
    exit_code: Annotated[
        bool, typer.Option(help="exit with the run's code: 0 completed, 75 stopped, otherwise 1")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="print changes until the runs are over")] = False,
) -> None:
    """Show the state of a run and what to do next. For several runs, show a table with one line each, or a JSON list.

    Examples:

        maskwright status runs/demo
        maskwright status runs/a runs/b
        maskwright status runs --json
        maskwright status runs --follow
    """
    from pretrain.run import EXIT_CODES

    if follow and json_format:
        raise UserError("--follow prints lines of text. Remove --json, or read RUN/journal.jsonl.")
    if follow:
        follow_runs(run)
    found = view_runs(run)
    if exit_code and len(found) > 1:
        raise UserError(f"--exit-code is for one run, and {len(found)} are given")
    if json_format:
        one = len(run) == len(found) == 1
        print(json.dumps(found[0].facts() if one else [view.facts() for view in found], indent=1))
    else:
        print_run(found[0]) if len(found) == 1 else print_runs(found)
    if exit_code:
        sys.exit(EXIT_CODES[found[0].summary.status.state] if found[0].summary.status else 1)
