"""Where a command sends its results: options first, then MLflow's environment variables, then the defaults."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from data_prep.errors import UserError


def mlflow_address(uri: str | None, experiment: str | None, models: Sequence[Path] = ()) -> tuple[str, str]:
    """Address and experiment for the results of a command.

    Args:
        models: that the command uses. If nothing else names an experiment, the results go to that of the run that made
            them, if that is one.

    Raises:
        UserError: for an address with a password, or one that MLflow cannot have.
    """
    from pretrain.config.run import TrackConfig
    from pretrain.tracking.address import require_address
    from pretrain.tracking.target import absolute, resolve_target

    refuse_password(uri)
    usual = TrackConfig()
    made_in = {name for model in models if (name := _experiment_of(model))}
    found = resolve_target(usual.uri, made_in.pop() if len(made_in) == 1 else usual.experiment)
    address = absolute(uri) if uri else found[0]
    require_address(address)
    return address, experiment or found[1]


def _experiment_of(model: Path) -> str | None:
    """The experiment of the run that made a model: a run folder, or an export inside one."""
    from pretrain.tracking import load_record

    for folder in (model, model.absolute().parent.parent):
        with contextlib.suppress(UserError, OSError):
            if record := load_record(folder):
                return record.experiment
    return None


def refuse_password(uri: str | None) -> None:
    """Raise UserError if the address that an option gives holds a password."""
    from data_prep.remote import redact

    if uri and redact(uri) != uri:
        raise UserError("Do not write a password on a command line, which others can read. Set MLFLOW_TRACKING_URI.")


def confirmed_address(run: Path, uri: str | None, yes: bool) -> str | None:
    """`uri`, or the address that only the run folder names, if the user agrees; None leaves the choice to `sync`.

    Args:
        yes: the user agreed with an option; else a terminal is asked.
    """
    from pretrain.tracking import unconfirmed_address

    address = None if uri else unconfirmed_address(run)
    if address is None or yes:
        return uri or address
    if sys.stdin.isatty() and sys.stderr.isatty():
        question = f"{run} names {address}. Send data and your MLflow credentials there?"
        return address if typer.confirm(question, err=True) else None
    return None
