"""`maskwright demo`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from launchers.commands.arguments import local


def demo(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="train.steps=100 ...")] = None,
    folder: Annotated[
        Path, typer.Option("--dir", parser=local, metavar="DIR", help="folder for data/, runs/ and mlflow.db")
    ] = Path(),
) -> None:
    """Run all steps on a bundled text: shards, training, a Hugging Face model. Takes minutes on a laptop CPU.

    Examples:

        maskwright demo

        maskwright demo train.steps=100 --dir /tmp/demo
    """
    from launchers.local import run_demo

    run_demo(folder, overrides or [], Console(highlight=False))
