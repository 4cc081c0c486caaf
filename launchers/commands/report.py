"""`maskwright report`: a run as one HTML page."""

import json
from pathlib import Path
from typing import Annotated

import typer

from launchers.commands.arguments import local


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder (run.dir of the config)")],
    out: Annotated[
        Path | None, typer.Option(parser=local, metavar="FILE", help="the page; RUN/report.html by default")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="show it in the browser")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print what the page shows as JSON, and write none")] = False,
) -> None:
    """Write a page with a run's curves, what happened to it, where its time went, and what the model said meanwhile.

    It is one file that needs no network: send it to anybody. A run that is training is shown as it stands.

    Examples:

        maskwright report runs/demo

        maskwright report runs/demo --out demo.html --open
    """
    place = out or run / "report.html"
    if as_json:
        from pretrain.reporting.page_data import collect

        print(json.dumps(collect(run, place)))
        return
    from pretrain.reporting.html_page import write_report

    write_report(run, place)
    print(place)
    if open_it:
        typer.launch(place.resolve().as_uri())
