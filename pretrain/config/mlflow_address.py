"""Check the addresses in `track.uri` and MLFLOW_TRACKING_URI, without importing MLflow."""

import re
from importlib.metadata import entry_points
from urllib.parse import urlsplit

from data_prep.common.urls import redact

OFFLINE = "none"
"""The address of a run that sends nothing until `maskwright track sync`."""

SERVERS = ("http", "https")
DATABASES = ("postgresql", "mysql", "sqlite", "mssql")
_KINDS = "http://HOST:PORT, sqlite:///FILE, postgresql://HOST/NAME, mysql+pymysql://HOST/NAME or databricks"


def address_problem(uri: str, driver: bool = False) -> str | None:
    """Why MLflow can never be reached at this address, and what to write; None if it may be reached.

    An address without a server behind it is no problem here: the server may come back.

    Args:
        driver: also look for the Python package that a database needs on this machine.
    """
    return _form_problem(uri) or (_missing_driver(uri) if driver else None)


def _form_problem(uri: str) -> str | None:
    if uri == OFFLINE or uri == "databricks" or uri.startswith("databricks://"):
        return None
    shown = redact(uri)[:100]
    if not uri.isprintable() or not uri or (" " in uri and not uri.startswith("sqlite")):
        return f"{shown!r} is not an MLflow address. Use {_KINDS}."
    if re.match(r"[\w.-]+:\d+(/|$)|\[[0-9a-fA-F:]+\]:\d+(/|$)", uri):
        return f"{shown} has no scheme. Write http://{shown}"
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return f"{shown} is not a valid address. Use {_KINDS}."
    if parts.scheme in SERVERS:
        return None if host else f"{shown} names no server. Write {parts.scheme}://HOST:PORT."
    if parts.scheme.partition("+")[0] == "sqlite" and not re.match(r"sqlite(\+\w+)?:///[^?]", uri):
        return f"{shown} names no file. Write sqlite:///mlflow.db, or sqlite:////absolute/path.db."
    if parts.scheme.partition("+")[0] in DATABASES or parts.scheme in plugins():
        return None
    if parts.scheme in ("", "file"):
        return f"{shown} is a folder, which MLflow no longer supports. Use sqlite:///mlflow.db or http://HOST:PORT."
    return f"MLflow has no addresses of the kind {parts.scheme[:40]}://. Use {_KINDS}."


def _missing_driver(uri: str) -> str | None:
    """A message about the Python package that a database address needs and this machine does not have."""
    if urlsplit(uri).scheme.partition("+")[0] not in DATABASES:
        return None
    try:
        from sqlalchemy import make_url  # half a second
    except ModuleNotFoundError:  # it comes with MLflow
        return "The Python package mlflow is not installed. Install it, or set track.uri: none."
    try:
        make_url(uri).get_dialect().import_dbapi()
    except ModuleNotFoundError as error:
        return f"{redact(uri)[:100]} needs the Python package {error.name}, which is not installed."
    except Exception as error:  # SQLAlchemy's own words for an unknown driver
        return f"{redact(uri)[:100]} cannot be used ({redact(str(error))[:100]})."
    return None


def plugins() -> set[str]:
    """Schemes that installed MLflow plugins add."""
    return {point.name for point in entry_points(group="mlflow.tracking_store")}
