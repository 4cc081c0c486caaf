"""Errors that the user can fix: the command line prints their message and no traceback."""

import os
import re
from pathlib import Path

MAX_MESSAGE = 300  # characters
MAX_TEXT = 20_000  # characters of a message before it is shortened
_WORD = 40  # characters that a shortened word keeps
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


class UserError(Exception):
    """Bad input. The message is one sentence: what is wrong, where, and what to do about it."""


class UnusableInput(UserError):
    """A file or value cannot be used. The message may quote it, and is one line of at most MAX_MESSAGE characters."""

    def __init__(self, message: str) -> None:
        super().__init__(concise(message))


class MissingFile(UnusableInput):
    """A file that is to be read does not exist."""


class MissingDataSet(UserError):
    """There is no folder where a data set should be."""


class DamagedData(UnusableInput):
    """Stored bytes differ from the checksum or count recorded for them."""


def one_line(text: str, limit: int = MAX_MESSAGE) -> str:
    """`text` as one line of at most `limit` characters: control characters become spaces, a long end becomes `...`."""
    line = _CONTROL.sub(" ", text)
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def concise(text: str) -> str:
    """`text` as one line of at most MAX_MESSAGE characters.

    The longest words of a longer text, which are paths and values, lose their middles, so that the advice at the end
    remains.
    """
    words = one_line(text, MAX_TEXT).split(" ")
    while (excess := sum(map(len, words)) + len(words) - 1 - MAX_MESSAGE) > 0:
        longest = max(range(len(words)), key=lambda number: len(words[number]))
        word = words[longest]
        if len(word) <= _WORD:
            break
        half = (max(_WORD, len(word) - excess) - 3) // 2
        words[longest] = f"{word[:half]}...{word[-half:]}"
    return one_line(" ".join(words))


def working_directory(path: str | Path) -> str:
    """For messages on a path that does not exist: ` (working directory: ...)` after a relative path, else nothing."""
    return "" if os.path.isabs(path) else f" (working directory: {os.getcwd()})"
