"""The MLflow address and experiment that a run or a command uses, and the client for them.

A run folder may come from somebody else. Its record names an address, and MLflow's client would send the user's
credentials there with the data. So that address is used only if the user names the same one or trusts the folder.
"""

import contextlib
import logging
import os
import re
import shlex
import socket
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlsplit

from data_prep.common.errors import UserError, first_line
from data_prep.common.files import check_writable, file_lock, write_file
from data_prep.common.urls import redact
from pretrain.config import OFFLINE, TrackConfig, address_problem
from pretrain.run import RunFolder
from pretrain.tracking.run_record import RunRecord
from pretrain.tracking.sqlite_address import sqlite_address, sqlite_path

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

# The tracking thread waits and retries by itself, instead of minutes inside one call. Printed addresses may hold a
# password.
_ENVIRONMENT_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "300",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_DEFAULT_ADDRESS = TrackConfig().uri
_DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_DATABASE_SECONDS = 5  # for a database to answer before training
_TIMED_DRIVERS = ("psycopg2", "psycopg", "pymysql", "mysqldb")  # with the argument connect_timeout
_DELETED = "SELECT experiment_id FROM experiments WHERE name = :name AND lifecycle_stage = 'deleted'"
_LOCAL_PAGES = "http://127.0.0.1:5000"  # of `mlflow ui`
_TRAINING_PAGES = "workflowType=machine_learning"  # without it MLflow 3.17 opens its pages for agents


class Target(NamedTuple):
    """An address and the name of an experiment there. A SQLite file has its absolute path in the address."""

    uri: str
    experiment: str

    @classmethod
    def of_training(cls, uri: str, experiment: str) -> "Target":
        """The target of a training; MLflow's environment variables win over the arguments, except over OFFLINE."""
        if uri != OFFLINE:
            uri = _absolute(os.environ.get("MLFLOW_TRACKING_URI") or uri)
        return cls(uri, os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment)

    @classmethod
    def of_command(cls, uri: str | None, experiment: str | None, models: Sequence[Path] = ()) -> "Target":
        """The target of a command's results: its options, else MLflow's environment variables, else the defaults.

        Args:
            models: that the command uses. If nothing else names an experiment, the results go to the experiment of the
                run that made them, if it is one run.

        Raises UserError for an address with a password, or one that MLflow cannot have.
        """
        _refuse_password(uri)
        made_in = {record.experiment for model in models if (record := training_of(model))}
        usual = cls.of_training(_DEFAULT_ADDRESS, made_in.pop() if len(made_in) == 1 else TrackConfig().experiment)
        address = _absolute(uri) if uri else usual.uri
        if problem := address_problem(address):
            raise UserError(problem)
        return cls(address, experiment or usual.experiment)

    @classmethod
    def of_run(
        cls, run_dir: Path, uri: str | None = None, experiment: str | None = None, trust_folder: bool = False
    ) -> "Target":
        """The target of a run's data: the arguments, else MLflow's environment variables, else the run's record.

        Args:
            trust_folder: use an address that the record alone names.

        Raises UserError if there is no record, or its address is needed and cannot be used.
        """
        _refuse_password(uri)
        record, path = RunRecord.require(run_dir), RunFolder(run_dir).mlflow_run
        named = uri or os.environ.get("MLFLOW_TRACKING_URI")
        address = _absolute(named or record.uri)
        if address in ("", OFFLINE):
            raise UserError(
                f"{run_dir} was trained with track.uri: none. Name the MLflow that gets its data with --uri."
            )
        if problem := address_problem(address):
            raise UserError(problem if named else f"{path}: {problem}")
        if not named and "***" in address:
            raise UserError(f"{path} has no password for {address}. Set MLFLOW_TRACKING_URI.")
        if not (named or trust_folder or address == _absolute(_DEFAULT_ADDRESS)):
            raise UserError(
                f"{address} is known from {path} alone. Add --uri with this address to send data and your MLflow "
                "credentials there, or --yes."
            )
        return cls(address, experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or record.experiment)

    @property
    def sqlite_path(self) -> Path | None:
        """The absolute path of a SQLite file's address; None for any other address."""
        return sqlite_path(self.uri)

    def connect(self) -> tuple["MlflowClient", str]:
        """A client and the experiment's id; the experiment is created if it is missing. Raises what MLflow raises."""
        path = self.sqlite_path
        if path:
            _deleted_in_file(path, self.experiment)
            with contextlib.suppress(OSError):  # MLflow reports it
                path.parent.mkdir(parents=True, exist_ok=True)
        # Two runs that create the tables of a SQLite file at the same time damage it for good.
        with contextlib.nullcontext() if path is None else file_lock(Path(f"{path}.lock"), needed=False):
            if path and not path.exists():
                _create_database(path)
            client = _open_client(self.uri)
            return client, _experiment_id(client, self.experiment, path)

    def check(self) -> None:
        """Look for what prevents all tracking until the user repairs it. A server that does not answer is no error.

        The address is one that `address_problem` accepts with its driver.

        Raises UserError if the SQLite file cannot be written, a database refuses the connection, or the experiment was
        deleted.
        """
        deleted, scheme = None, urlsplit(self.uri).scheme
        if path := self.sqlite_path:
            deleted = _deleted_in_file(path, self.experiment)
        elif scheme.partition("+")[0] in _DATABASE_PORTS:
            deleted = _deleted_in_database(self.uri, self.experiment)
        elif scheme in ("http", "https"):
            with contextlib.suppress(Exception):  # the run reports it, and trains
                experiment = _open_client(self.uri).get_experiment_by_name(self.experiment)
                deleted = experiment.experiment_id if experiment and _is_deleted(experiment) else None
        if deleted:
            raise _deleted_experiment(self.experiment, deleted)

    def server_problem(self) -> str | None:
        """Why the server does not answer this user, in a few words; None if it does. Nothing is written there."""
        try:
            _open_client(self.uri).search_experiments(max_results=1)
        except Exception as error:
            return short_reason(error)
        return None


def training_of(model: Path) -> RunRecord | None:
    """The record of the run that made a model: a run folder, or an export inside one."""
    for folder in (model, model.absolute().parent.parent):
        with contextlib.suppress(UserError, OSError):
            if record := RunRecord.load(folder):
                return record
    return None


def _refuse_password(uri: str | None) -> None:
    """Raise UserError if the address that an option gives holds a password."""
    if uri and redact(uri) != uri:
        raise UserError("Do not write a password on a command line, which others can read. Set MLFLOW_TRACKING_URI.")


def sync_command(run_dir: Path, address: str) -> str:
    """The command that sends the rest of a run to an address; a password stays out of it."""
    command = f"maskwright track sync {shlex.quote(str(run_dir))}"
    known = address in (OFFLINE, _absolute(_DEFAULT_ADDRESS)) or "MLFLOW_TRACKING_URI" in os.environ
    return command if known or redact(address) != address else f"{command} --uri {shlex.quote(address)}"


def run_page(run_dir: Path) -> str | None:
    """The MLflow page of a run folder's run; None if it is not known."""
    with contextlib.suppress(UserError, OSError):
        if record := RunRecord.load(run_dir):
            return page_of_record(record)
    return None


def page_of_record(record: RunRecord) -> str | None:
    """The MLflow page of a run: an address, for a database with the command that serves it; None if unknown."""
    known = re.fullmatch("[0-9a-f]{32}", record.run_id or "") and re.fullmatch(r"\d+", record.experiment_id or "")
    if not known or address_problem(record.uri):
        return None
    page = f"#/experiments/{record.experiment_id}/runs/{record.run_id}?{_TRAINING_PAGES}"
    if record.uri.startswith(("http://", "https://")):
        return f"{record.uri.rstrip('/')}/{page}"
    if "***" in record.uri or record.uri.startswith("databricks"):
        return None
    return f"mlflow ui --backend-store-uri {shlex.quote(record.uri)}   then open {_LOCAL_PAGES}/{page}"


def _open_client(uri: str) -> "MlflowClient":
    """A client for an address. It gives up soon, and retries nothing by itself."""
    for name, value in _ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    # DeepSpeed has imported MLflow by now, which reads the variable then.
    logging.getLogger("mlflow").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"].upper())
    return MlflowClient(tracking_uri=uri)


def _create_database(path: Path) -> None:
    """Write a SQLite file with MLflow's tables.

    MLflow makes them in many steps. A file that a process left in the middle could never be used: a short run, or one
    that fails at its start, may end before the last step. So they are made in another file, which is copied.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "mlflow.db")
        _open_client(sqlite_address(made)).search_experiments(max_results=1)
        write_file(path, made.read_bytes())


def _experiment_id(client: "MlflowClient", name: str, path: Path | None) -> str:
    if experiment := client.get_experiment_by_name(name):
        if _is_deleted(experiment):
            raise _deleted_experiment(name, experiment.experiment_id)
        return experiment.experiment_id
    # Next to the database: MLflow's default is `mlruns` in the working folder of the process that comes first.
    location = (path.parent / f"{path.stem}-artifacts" / quote(name, safe="")).as_uri() if path else None
    try:
        return client.create_experiment(name, artifact_location=location)
    except Exception:
        if experiment := client.get_experiment_by_name(name):  # another run was faster
            return experiment.experiment_id
        raise


def _is_deleted(experiment: "Experiment") -> bool:
    return bool(experiment.lifecycle_stage == "deleted")


def _deleted_experiment(name: str, experiment_id: str) -> UserError:
    return UserError(
        f"The MLflow experiment {name!r} was deleted. Restore it with `mlflow experiments restore --experiment-id "
        f"{experiment_id}`, or choose another one (track.experiment, or --experiment of a command)."
    )


def _deleted_in_file(path: Path, experiment: str) -> str | None:
    """The id of the experiment in a SQLite file if it was deleted there. A missing file has none.

    Raises UserError if the file cannot be written. MLflow itself would try for ten minutes.
    """
    if not path.exists():
        check_writable(path, "track.uri")
        return None
    address = f"{path.as_uri()}?mode=rw"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=0, isolation_level=None)) as database:
            with contextlib.suppress(sqlite3.OperationalError):  # no tables yet
                if row := database.execute(_DELETED, {"name": experiment}).fetchone():
                    return str(row[0])
            database.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        if "locked" not in str(error):  # another run writes
            raise UserError(f"MLflow's file {path} cannot be used ({error}). Choose another track.uri.") from None
    return None


def _deleted_in_database(uri: str, experiment: str) -> str | None:
    """As _deleted_in_file, for a database on a server. A server that does not answer is no error: it may come back.

    Raises UserError if it refuses the connection, as the login is wrong or there is no such database.
    """
    from sqlalchemy import create_engine, exc, make_url, text  # takes half a second

    url = make_url(uri)
    timed = url.get_driver_name() in _TIMED_DRIVERS
    engine = create_engine(url, connect_args={"connect_timeout": _DATABASE_SECONDS} if timed else {})
    try:
        port = url.port or _DATABASE_PORTS[url.get_backend_name()]
        socket.create_connection((url.host or "", port), _DATABASE_SECONDS).close()
    except OSError:
        return None
    try:
        with engine.connect() as connection, contextlib.suppress(exc.DBAPIError):  # no tables yet
            deleted = connection.execute(text(_DELETED), {"name": experiment}).scalar()
            return None if deleted is None else str(deleted)
    except exc.DBAPIError as error:
        reason = redact(first_line(error.orig or error).rpartition("FATAL: ")[2]).strip()
        if "timeout" not in reason and "timed out" not in reason:
            raise UserError(f"MLflow's database {redact(uri)} refuses the connection ({reason}). Correct it.") from None
    finally:
        engine.dispose()
    return None


def _absolute(uri: str) -> str:
    """The address, for a SQLite file with its absolute path, so that `track sync` finds it from any folder."""
    path = sqlite_path(uri)
    return uri if path is None else f"{sqlite_address(path)}{uri[len(uri.partition('?')[0]) :]}"


def short_reason(error: Exception) -> str:
    """Why MLflow was not reached, in a few words and without secrets; its client's own text fills a screen."""
    if isinstance(error, UserError):
        return str(error)
    text = redact(str(error)).strip()
    if "out-of-date database schema" in text:
        return "its tables are incomplete, or of another version: move the file away, or run `mlflow db upgrade`"
    if match := re.search(r"\[Errno -?\d+\] ([\w ,]+)", text):
        return match[1].lower()
    if "timed out" in text.lower():
        return "no answer in time"
    if match := re.search(r"(?:error code|status code:?) (\d{3})|\b(\d{3}) (?:error|response)", text):
        code = match[1] or match[2]
        login = ", the login is refused: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        return f"HTTP {code}{login if code in ('401', '403') else ''}"
    return text.splitlines()[0][:100] if text else type(error).__name__
