"""`maskwright status`: show the state of runs."""

import json
import sys
from typing import Annotated

import typer

from data_prep.common.errors import UserError
from launchers.arguments import JsonFlag, RunsArgument
from launchers.watch import follow_runs, print_run, print_runs, require_runs, view_runs


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
    views = view_runs(run)
    if exit_code and len(views) > 1:
        raise UserError(f"--exit-code is for one run, and {len(views)} are given")
    shown = [view for view in views if view.is_run]
    if json_format:
        is_single = len(run) == len(views) == 1
        print(json.dumps(shown[0].facts() if is_single else [view.facts() for view in shown], indent=1))
    elif shown:
        print_run(shown[0]) if len(shown) == 1 else print_runs(shown)
    require_runs(views)
    if exit_code:
        sys.exit(EXIT_CODES[views[0].summary.status.state] if views[0].summary.status else 1)
