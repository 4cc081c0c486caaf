"""`maskwright track`: what MLflow knows of a run."""

from pathlib import Path
from typing import Annotated

import typer

track_app = typer.Typer(help="Bring MLflow up to date with a run.", no_args_is_help=True)


@track_app.callback()
def _group() -> None:
    """Keeps `sync` a named subcommand while it is the only one."""


@track_app.command(name="sync")
def sync_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run, with its journal.jsonl.")],
) -> None:
    """Send to MLflow what it lacks of a run, for instance after the server was away.

    Nothing is doubled, however often it is repeated. `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` win over the
    address and the experiment the run was started with.

    Example: `maskwright track sync runs/demo`
    """
    from pretrain.tracking import sync

    points = sync(run)
    typer.echo(f"{points:,} points sent" if points else "MLflow already has every point")
