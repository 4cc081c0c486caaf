"""Where the data of a run folder go, decided by the user and not by the folder.

A run folder may come from somebody else. Its record names an address, and MLflow's client would send the user's
credentials there with the data. So that address counts only where the user names the same one.
"""

import os
import shlex
from pathlib import Path

from data_prep.errors import UserError
from data_prep.remote import redact
from pretrain.tracking.address import DEFAULT_ADDRESS, OFFLINE, address_problem
from pretrain.tracking.record import RECORD_NAME, RunRecord, load_record
from pretrain.tracking.target import absolute


def destination(run_dir: Path, record: RunRecord, uri: str | None = None) -> tuple[str, str]:
    """Address and experiment for the data of a run: `uri`, or MLFLOW_TRACKING_URI, or the default.

    Raises:
        UserError: if only the folder names an address, or there is none, or it cannot be one.
    """
    named = uri or os.environ.get("MLFLOW_TRACKING_URI")
    address = absolute(named or record.uri)
    if address in ("", OFFLINE):
        raise UserError(f"{run_dir} was trained with track.uri: none. Name the MLflow that gets its data with --uri.")
    if problem := address_problem(address):
        raise UserError(problem if named else f"{run_dir / RECORD_NAME}: {problem}")
    if not named and "***" in address:
        raise UserError(f"{run_dir / RECORD_NAME} has no password for {address}. Set MLFLOW_TRACKING_URI.")
    if not named and address != absolute(DEFAULT_ADDRESS):
        raise UserError(
            f"{address} is known from {run_dir / RECORD_NAME} alone. Add --uri with this address to send data and "
            "your MLflow credentials there, or --yes."
        )
    return address, os.environ.get("MLFLOW_EXPERIMENT_NAME") or record.experiment


def unconfirmed_address(run_dir: Path) -> str | None:
    """The address that the folder names and the user does not; None if there is no such address.

    Raises:
        UserError: if the record is damaged.
    """
    record = load_record(run_dir)
    if record is None or os.environ.get("MLFLOW_TRACKING_URI"):
        return None
    address = absolute(record.uri)
    usable = address not in ("", OFFLINE) and "***" not in address and address_problem(address) is None
    return address if usable and address != absolute(DEFAULT_ADDRESS) else None


def sync_command(run_dir: Path, address: str) -> str:
    """The command that sends the rest of a run to an address; a password stays out of it."""
    command = f"maskwright track sync {shlex.quote(str(run_dir))}"
    known = (
        address in (OFFLINE, absolute(DEFAULT_ADDRESS))
        or redact(address) != address
        or "MLFLOW_TRACKING_URI" in os.environ
    )
    return command if known else f"{command} --uri {shlex.quote(address)}"
