"""Addresses of MLflow that are files of SQLite."""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import quote, unquote

from data_prep.common.errors import UserError


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of a SQLite file's address; None for any other address."""
    match = re.fullmatch(r"sqlite:///([^?]+)(\?.*)?", uri)
    if match is None or match[1] == ":memory:":
        return None
    return Path(unquote(match[1]) if _are_decoded() else match[1]).absolute()


def sqlite_address(path: Path) -> str:
    """The address of a SQLite file, with its absolute path, quoted if it has a % or a ?.

    Slashes are quoted then too: MLflow creates the parent folder of the path in the address, without decoding it.

    Raises UserError for a path with ?, which SQLAlchemy before 2.1 cannot open.
    """
    text = str(path.absolute())
    if ("%" in text or "?" in text) and _are_decoded():
        return f"sqlite:////{quote(text[1:], safe='')}"
    if "?" in text:
        raise UserError(f"MLflow's file {text} needs SQLAlchemy 2.1, as its path has a ?. Choose another track.uri.")
    return f"sqlite:///{text}"


def _are_decoded() -> bool:
    """Whether SQLAlchemy decodes the path of a SQLite file's address."""
    try:
        return tuple(map(int, version("sqlalchemy").split(".")[:2])) >= (2, 1)
    except PackageNotFoundError:  # nothing opens the address then
        return True
