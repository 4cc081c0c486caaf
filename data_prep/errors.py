"""The errors that are the user's to mend: the command line prints their one sentence and no traceback."""

import re

MAX_MESSAGE = 300  # characters
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


class UserError(Exception):
    """Bad input. The message is one sentence: what is wrong, where, and what to do about it."""


class MissingFile(UserError):
    """A file that is to be read does not exist."""


class DamagedData(UserError):
    """Stored bytes differ from the checksum or count recorded for them."""


def one_line(text: str, limit: int = MAX_MESSAGE) -> str:
    """`text` as one line of at most `limit` characters: control characters become spaces, a long end becomes `...`."""
    line = _CONTROL.sub(" ", text)
    return line if len(line) <= limit else f"{line[: limit - 3]}..."
