"""`maskwright track models`: log checkpoints as MLflow models, or register one."""

import math
import re
from typing import Annotated, Literal

import typer

from data_prep.common.errors import UserError, one_line
from data_prep.storage import require_run
from launchers.arguments import RunArgument, UriOption, YesOption, refuse_unread


def track_models(
    context: typer.Context,
    run: RunArgument,
    which: Annotated[
        Literal["all", "best", "last"] | None,
        typer.Option(
            help="checkpoints to log; best: each with a lower held-out loss than all earlier ones  "
            "[default: all; with --register: best, the lowest loss]"
        ),
    ] = None,
    step: Annotated[int | None, typer.Option(help="log only the checkpoint of this step")] = None,
    register: Annotated[
        str | None, typer.Option(metavar="NAME", help="register one checkpoint as the next version of this model")
    ] = None,
    alias: Annotated[
        str | None, typer.Option(help="with --register: alias of the version, for example champion")
    ] = None,
    uri: UriOption = None,
    yes: YesOption = False,
) -> None:
    """Log a run's checkpoints and their evaluations as MLflow models. Models that are already logged are skipped.

    You may repeat the command, also during training.

    Examples:

        maskwright track models runs/demo
        maskwright track models runs/demo --step 400
        maskwright track models runs/demo --register demo-bert --alias champion
    """
    require_run(run)
    if which and step is not None:
        raise UserError("--which and --step both choose checkpoints. Give one of them.")
    if register is None:
        refuse_unread(context, "--register", "alias")
    else:
        _check_names(register, alias)
        if which == "all":
            raise UserError("--register is for one checkpoint. Write --which best, --which last, or --step N.")
    from pretrain import tracking

    tracking.sync(run, uri, trust_folder=yes)
    if register is None:
        names = tracking.log_models(run, which or "all", step, uri, trust_folder=yes)
        typer.echo(f"logged {', '.join(names)}" if names else "MLflow already has every model")
        return
    chosen = str(step) if step is not None else which or "best"
    made = tracking.register(run, register, chosen, alias, uri, trust_folder=yes)
    loss = f", held-out loss {made.loss:.4f}" if math.isfinite(made.loss) else ""
    place = f"models:/{made.name}@{alias}" if alias else f"models:/{made.name}/{made.version}"
    typer.echo(f"{place} is version {made.version}: {made.model}{loss}")


def _check_names(name: str, alias: str | None) -> None:
    """Raise UserError for a name or an alias that MLflow would refuse after it has got the model."""
    if not name.strip() or re.search("[/:]", name):
        raise UserError(f"--register is {name!r}, but MLflow takes no name with / or : in it, or without a letter.")
    if alias is not None and not re.fullmatch(r"(?!v\d+$|latest$)[\w-]{1,255}", alias, re.IGNORECASE):
        raise UserError(
            f"--alias is {one_line(repr(alias), 60)}. Use letters, digits, - and _, but not latest, or v with a number."
        )
