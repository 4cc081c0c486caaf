"""`maskwright track models`: log checkpoints as MLflow models."""

from typing import Annotated, Literal

import typer

from data_prep.storage import require_run
from launchers.commands.arguments import RunArgument, UriOption, YesOption


def track_models(
    run: RunArgument,
    which: Annotated[
        Literal["all", "best", "last"],
        typer.Option(help="checkpoints to log; best: each with a lower held-out loss than all earlier ones"),
    ] = "all",
    step: Annotated[int | None, typer.Option(help="log only the checkpoint of this step")] = None,
    uri: UriOption = None,
    yes: YesOption = False,
) -> None:
    """Log a run's checkpoints and their evaluations as MLflow models. Models that are already logged are skipped.

    You may repeat the command, also during training.

    Examples:

        maskwright track models runs/demo
        maskwright track models runs/demo --step 400
    """
    from pretrain.tracking import sync

    require_run(run)
    sync(run, uri, trust_folder=yes)
    from pretrain.tracking import log_models  # imports torch, which takes seconds

    names = log_models(run, which, step, uri, trust_folder=yes)
    typer.echo(f"logged {', '.join(names)}" if names else "MLflow already has every model")
