"""`maskwright track models`: log checkpoints as MLflow models."""

from typing import Annotated, Literal

import typer

from launchers.commands.arguments import RunArgument, UriOption, YesOption
from launchers.commands.track_sync import send_first


def track_models(
    run: RunArgument,
    which: Annotated[
        Literal["all", "best", "last"], typer.Option(help="best: each with a lower held-out loss than all before it")
    ] = "all",
    step: Annotated[int | None, typer.Option(help="the checkpoint of this step alone")] = None,
    uri: UriOption = None,
    yes: YesOption = False,
) -> None:
    """Log a run's checkpoints as MLflow models, with their evaluations; those that are not logged yet.

    It may be repeated, and run during the training.

    Examples:

        maskwright track models runs/demo

        maskwright track models runs/demo --step 400
    """
    uri = send_first(run, uri, yes)
    from pretrain.tracking.logged_models import log_models  # imports torch, which takes seconds

    names = log_models(run, which, step, uri)
    typer.echo(f"logged {', '.join(names)}" if names else "MLflow already has every model")
