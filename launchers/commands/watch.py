"""`maskwright watch`: follow runs in the terminal."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from launchers.commands.arguments import JsonFlag
from launchers.display import text_console
from launchers.watch import live_table, look_at_all, watch_runs

_PIPE_WIDTH = 1000  # so that no line wraps


def watch(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="run folders, or folders that contain runs")
    ] = None,
    json_format: JsonFlag = False,
) -> None:
    """Follow the progress of runs in the terminal: phase, loss, its curve, speed, time left. Press q to leave.

    Without RUN, it follows the runs in `runs`. Without a terminal, it prints the table once.

    Examples:

        maskwright watch

        maskwright watch runs/demo
    """
    folders = runs or [Path("runs")]
    found = look_at_all(folders)
    if json_format:
        print(json.dumps([seen.facts() for seen in found], indent=1))
    elif sys.stdout.isatty():
        watch_runs(folders)
    else:
        text_console(_PIPE_WIDTH).print(live_table(found))
