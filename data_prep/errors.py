"""Errors that the user can fix: the command line prints their message and no traceback."""

import os
import re
from pathlib import Path

MAX_MESSAGE = 300  # characters
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


class UserError(Exception):
    """Bad input. The message is one sentence: what is wrong, where, and what to do about it."""


class MissingFile(UserError):
    """A file that is to be read does not exist."""


class MissingDataSet(UserError):
    """There is no folder where a data set should be."""


class DamagedData(UserError):
    """Stored bytes differ from the checksum or count recorded for them."""


def one_line(text: str, limit: int = MAX_MESSAGE) -> str:
    """`text` as one line of at most `limit` characters: control characters become spaces, a long end becomes `...`."""
    line = _CONTROL.sub(" ", text)
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def working_directory(path: str | Path) -> str:
    """For messages on a path that does not exist: ` (working directory: ...)` after a relative path, else nothing."""
    return "" if os.path.isabs(path) else f" (working directory: {os.getcwd()})"
