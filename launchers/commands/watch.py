"""`maskwright watch`: follow runs in the terminal."""

import json
from pathlib import Path
from typing import Annotated

import typer

from launchers.commands.arguments import JsonFlag
from launchers.watch import look_at_all, watch_runs


def watch(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="run folders, or folders that contain runs")
    ] = None,
    json_format: JsonFlag = False,
) -> None:
    """Follow runs in the terminal: phase, loss, its curve, speed, time left. Press q to leave.

    Without RUN, it follows the runs in `runs`. Without a terminal, it prints the table once.

    Examples:

        maskwright watch
        maskwright watch runs/demo
    """
    folders = runs or [Path("runs")]
    if json_format:
        print(json.dumps([seen.facts() for seen in look_at_all(folders)], indent=1))
    else:
        watch_runs(folders)
