"""`maskwright track register`: register a model of a run with MLflow."""

import math
import re
from typing import Annotated

import typer

from data_prep.common.errors import UserError, one_line
from data_prep.storage import require_run
from launchers.commands.arguments import RunArgument, UriOption, YesOption


def track_register(
    run: RunArgument,
    name: Annotated[str, typer.Option(help="name of the registered model")],
    step: Annotated[
        str, typer.Option(metavar="N|best|last", help="checkpoint to register; best has the lowest held-out loss")
    ] = "best",
    alias: Annotated[str | None, typer.Option(help="alias of this version, for example champion")] = None,
    uri: UriOption = None,
    yes: YesOption = False,
) -> None:
    """Register a run's model with MLflow. The model is logged first if necessary.

    Example:

        maskwright track register runs/demo --name demo-bert --alias champion
    """
    from pretrain.tracking import sync

    require_run(run)
    _check_names(name, alias)
    sync(run, uri, trust_folder=yes)
    from pretrain.tracking import register  # imports torch, which takes seconds

    made = register(run, name, step, alias, uri, trust_folder=yes)
    loss = f", held-out loss {made.loss:.4f}" if math.isfinite(made.loss) else ""
    place = f"models:/{made.name}@{alias}" if alias else f"models:/{made.name}/{made.version}"
    typer.echo(f"{place} is version {made.version}: {made.model}{loss}")


def _check_names(name: str, alias: str | None) -> None:
    """Raise UserError for a name or an alias that MLflow would refuse after it has got the model."""
    if not name.strip() or re.search("[/:]", name):
        raise UserError(f"--name is {name!r}, but MLflow takes no name with / or : in it, or without a letter.")
    if alias is not None and not re.fullmatch(r"(?!v\d+$|latest$)[\w-]{1,255}", alias, re.IGNORECASE):
        raise UserError(
            f"--alias is {one_line(repr(alias), 60)}. Use letters, digits, - and _, but not latest, or v with a number."
        )
