"""Where a run is tracked: the address, the experiment, and the client that reaches them."""

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from data_prep.files import file_lock
from pretrain.tracking.address import OFFLINE

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Our own back-off replaces MLflow's minutes of retries inside one call. Printed addresses may hold a password.
_ENVIRONMENT_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "300",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def resolve_target(uri: str, experiment: str) -> tuple[str, str]:
    """Tracking address and experiment name; MLflow's environment variables win over the arguments, but for OFFLINE.

    A relative SQLite path is made absolute, so that `track sync` finds the file from any folder.
    """
    if uri != OFFLINE:
        uri = absolute(os.environ.get("MLFLOW_TRACKING_URI") or uri)
    return uri, os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment


def absolute(uri: str) -> str:
    """The address, a SQLite file's with its absolute path."""
    path = sqlite_path(uri)
    return uri if path is None else f"sqlite:///{path}{uri[len(uri.partition('?')[0]) :]}"


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of a SQLite file's address; None for any other address."""
    match = re.fullmatch(r"sqlite:///([^?]+)(\?.*)?", uri)
    return None if match is None or match[1] == ":memory:" else Path(match[1]).absolute()


def connect(uri: str, experiment: str) -> tuple["MlflowClient", str]:
    """A client and the experiment's id; the experiment is made where there is none. Raises what MLflow raises."""
    for name, value in _ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    # DeepSpeed has imported MLflow by now, which reads the variable then.
    logging.getLogger("mlflow").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"].upper())
    path = sqlite_path(uri)
    with alone(path):
        client = MlflowClient(tracking_uri=uri)
        return client, _experiment_id(client, experiment, path)


def _experiment_id(client: "MlflowClient", name: str, path: Path | None) -> str:
    if experiment := client.get_experiment_by_name(name):
        return experiment.experiment_id
    # Next to the database: MLflow's default is `mlruns` in the working folder of the process that comes first.
    location = (path.parent / f"{path.stem}-artifacts" / quote(name, safe="")).as_uri() if path else None
    try:
        return client.create_experiment(name, artifact_location=location)
    except Exception:
        if experiment := client.get_experiment_by_name(name):  # another run was faster
            return experiment.experiment_id
        raise


@contextlib.contextmanager
def alone(path: Path | None) -> Iterator[None]:
    """Wait until no other run is here: two that make the tables of a SQLite file at once spoil it for good."""
    # Where no file can be made or locked, MLflow reports it.
    with contextlib.nullcontext() if path is None else file_lock(Path(f"{path}.lock"), needed=False):
        yield
