"""`maskwright report`: write an HTML report of a run."""

from pathlib import Path
from typing import Annotated

import typer

from launchers.arguments import RunArgument, local
from pretrain.run import RunFolder


def report(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option(parser=local, metavar="FILE", help="output file; RUN/report.html by default")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="open the page in the browser")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="print the data of the page as JSON, and write no page")
    ] = False,
) -> None:
    """Write an HTML page of a run: curves, events, use of time, predictions.

    The page is one file that works offline. It may be written during training.

    Examples:

        maskwright report runs/demo
        maskwright report runs/demo --out demo.html --open
    """
    place = out or RunFolder(run).report
    from pretrain.reporting import collect, write_page

    content = collect(run, place)
    if as_json:
        import orjson

        print(orjson.dumps(content).decode())  # null for a number that is not finite
        return
    write_page(content, place)
    print(place)
    if open_it:
        typer.launch(place.resolve().as_uri())
