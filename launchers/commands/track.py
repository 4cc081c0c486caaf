"""`maskwright track`: what MLflow knows of a run."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from launchers.commands.run import RunArgument

track_app = typer.Typer(help="Bring MLflow up to date with a run.", no_args_is_help=True)


class Which(str, Enum):
    """Which checkpoints to log."""

    all = "all"
    best = "best"
    last = "last"


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


@track_app.command()
def models(
    run: RunArgument,
    which: Annotated[Which, typer.Option(help="best: each with a lower held-out loss than all before it")] = Which.all,
    step: Annotated[int | None, typer.Option(help="the checkpoint of this step alone")] = None,
) -> None:
    """Log a run's checkpoints as MLflow models, with their evaluations; those that are not logged yet.

    It may be repeated, and run beside the training.

    Examples:

        maskwright track models runs/demo

        maskwright track models runs/demo --step 400
    """
    from pretrain.logged_models import log_models
    from pretrain.tracking import sync

    sync(run)
    names = log_models(run, which.value, step)
    typer.echo(f"logged {', '.join(names)}" if names else "MLflow already has every model")


@track_app.command()
def register(
    run: RunArgument,
    name: Annotated[str, typer.Option(help="of the registered model")],
    step: Annotated[str, typer.Option(metavar="N|best|last", help="best: lowest held-out loss")] = "best",
    alias: Annotated[str | None, typer.Option(help="for this version, for instance champion")] = None,
) -> None:
    """Register a run's model with MLflow, and log it first if it is not logged yet.

    Example: `maskwright track register runs/demo --name demo-bert --alias champion`
    """
    from pretrain.registry import register as register_model
    from pretrain.tracking import sync

    sync(run)
    made = register_model(run, name, step, alias)
    loss = "" if made.loss is None else f", held-out loss {made.loss:.4f}"
    place = f"models:/{made.name}@{alias}" if alias else f"models:/{made.name}/{made.version}"
    typer.echo(f"{place} is version {made.version}: {made.model}{loss}")
