"""Errors that the user can fix. The command line prints their message in one line, without a traceback."""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

ON_WINDOWS = "Maskwright does not run on Windows. Install WSL2 with `wsl --install`, and Maskwright in it."
MAX_MESSAGE = 300  # characters
MAX_TEXT = 20_000  # characters of a message before it is shortened
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_LASTING = {
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTDIR),
    *(errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.EINVAL, errno.EOPNOTSUPP),
}
_RUST = "pyo3_runtime"  # of PanicException, which is no Exception: the tokenizers library failed
_REASON = 100  # characters of the message of a library
_WORD = 40  # characters of a shortened word
_WHOLE = 160  # characters of a path or value that UserError keeps whole
_TERMINAL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


class UserError(Exception):
    """Invalid input. The message says what is wrong, where, and what to do.

    In one line of more than MAX_MESSAGE characters, paths and values of extreme length are shortened in the middle.
    Others stay whole, so that they can be copied.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message if "\n" in message else shortened(message, _WHOLE))


class UnusableInput(UserError):
    """An unusable file or value. The message, which may quote it, is one line of at most MAX_MESSAGE characters."""

    def __init__(self, message: str) -> None:
        super().__init__(concise(message))


class MissingFile(UnusableInput):
    """A file to read does not exist."""


class MissingDataSet(UnusableInput):
    """A data set folder does not exist. `setting` is what names it, such as data.train."""

    def __init__(self, folder: str | Path, setting: str = "the path") -> None:
        where = f"{folder}{working_directory(folder)}"
        super().__init__(f"No data set at {where}. Create it with `maskwright prep run`, or correct {setting}.")


class DamagedData(UnusableInput):
    """Stored bytes differ from the checksum or count recorded for them."""


def one_line(text: str, limit: int = MAX_MESSAGE) -> str:
    """`text` as one line of at most `limit` characters: control characters become spaces, a long end becomes `...`."""
    line = _CONTROL.sub(" ", text)
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


@contextlib.contextmanager
def library_errors(problem: str, advice: str) -> Iterator[None]:
    """Turn the errors that libraries raise for damaged files, which are of any type, into a UserError of one line."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__module__ != _RUST:
            raise
        reason = one_line(" ".join(str(error).split()), _REASON) or type(error).__name__
        raise UnusableInput(f"{problem} ({reason}). {advice}") from error


def printable(text: str, keep: str = "") -> str:
    """The text with control characters as escapes, so that data from others cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def without_controls(text: str, keep: str = "") -> str:
    """The text with the characters that change how a terminal shows other text as JSON escapes, except `keep`.

    These are control characters, C1 ones included, halves of surrogate pairs, and overrides of the direction of text.
    Unlike `printable`, it keeps signs that scripts need, such as the joiners of Persian and Hindi.
    """
    return _TERMINAL.sub(lambda match: match[0] if match[0] in keep else f"\\u{ord(match[0]):04x}", text)


def first_line(error: BaseException) -> str:
    """The first line of the message of a library, without a full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def concise(text: str) -> str:
    """`text` as one line of at most MAX_MESSAGE characters, with control characters as escapes such as `\\n`.

    The longest words, which are paths and values, are shortened in the middle, so that the advice at the end stays.
    """
    shown = _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text[:MAX_TEXT])
    return one_line(shortened(shown))


def shortened(text: str, whole: int = _WORD) -> str:
    """`text` with its longest words shortened in the middle, as far as MAX_MESSAGE characters need it.

    Words of at most `whole` characters stay.
    """
    words = text[:MAX_TEXT].split(" ")
    while (excess := sum(map(len, words)) + len(words) - 1 - MAX_MESSAGE) > 0:
        longest = max(range(len(words)), key=lambda number: len(words[number]))
        word = words[longest]
        if len(word) <= whole:
            break
        half = (max(_WORD, len(word) - excess) - 3) // 2
        words[longest] = f"{word[:half]}...{word[-half:]}"
    return " ".join(words)


def working_directory(path: str | Path) -> str:
    """` (working directory: ...)` for the message on a missing relative path; empty for an absolute path."""
    return "" if os.path.isabs(path) else f" (working directory: {os.getcwd()})"


def is_lasting(error: OSError) -> bool:
    """Whether the same operation always fails, so that a retry cannot help."""
    return error.errno in _LASTING


def reason_of(error: OSError) -> str:
    """The reason as the system gives it, to follow a colon."""
    text = error.strerror or str(error) or type(error).__name__
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def cannot_write(path: str | Path, error: OSError, option: str = "--out") -> UserError:
    """The error for an output that cannot be written. `option` is the option that names the output."""
    if error.errno in NO_ROOM:
        advice = f"Make room, or choose another {option}."
    elif error.errno == errno.ENAMETOOLONG:
        path, advice = f"{str(path)[:60]}...", f"Choose a shorter {option}."
    else:
        advice = f"Choose another {option}."
    return UserError(f"Cannot write to {path}: {reason_of(error)}. {advice}")


def interrupted(error: OSError, out: Path) -> UserError:
    """The error for a failed command that resumes its work in `out` when it is run again."""
    path = Path(error.filename) if isinstance(error.filename, str) else out
    if is_lasting(error):
        if path.absolute().is_relative_to(out.absolute()):
            return cannot_write(path, error)
        return UserError(f"Cannot read or write {path}: {reason_of(error)}. Change its permissions, or leave it out.")
    again = "run the same command again."
    if error.errno in NO_ROOM:
        return UserError(f"Cannot write to {path}: {reason_of(error)}. Finished work is kept: make room, and {again}")
    return UserError(f"Reading or writing {path} failed: {reason_of(error)}. Finished work is kept: {again}")


def unforeseen(error: OSError) -> str:
    """The message for an error with a path that no command handles."""
    if error.errno in NO_ROOM:
        advice = "Make room, and run the same command again."
    elif is_lasting(error):
        advice = "Choose another path, or change its permissions."
    else:
        advice = "Run the same command again."
    return f"Cannot read or write {error.filename}: {reason_of(error)}. {advice}"
