"""Errors of the file system as one sentence: which a retry can cure, and what to do about the others."""

import errno
from pathlib import Path

from data_prep.errors import UserError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_LASTING = {
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.EEXIST,
    errno.EINVAL,
    errno.EOPNOTSUPP,
}


def is_lasting(error: OSError) -> bool:
    """Whether the same operation always fails again, so that a retry cannot help."""
    return error.errno in _LASTING


def reason_of(error: OSError) -> str:
    """The system's reason, to be written after a colon."""
    text = error.strerror or str(error) or type(error).__name__
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def cannot_write(path: str | Path, error: OSError, option: str = "--out") -> UserError:
    """The error for an output that cannot be written; `option` is what names it."""
    if error.errno in NO_ROOM:
        advice = f"Make room, or choose another {option}."
    elif error.errno == errno.ENAMETOOLONG:
        path, advice = f"{str(path)[:60]}...", f"Choose a shorter {option}."
    else:
        advice = f"Choose another {option}."
    return UserError(f"Cannot write to {path}: {reason_of(error)}. {advice}")


def interrupted(error: OSError, out: Path) -> UserError:
    """The error for work on `out` that failed; started again, it resumes after the finished tasks."""
    path = Path(error.filename) if isinstance(error.filename, str) else out
    if is_lasting(error):
        if path.absolute().is_relative_to(out.absolute()):
            return cannot_write(path, error)
        return UserError(f"Cannot read or write {path}: {reason_of(error)}. Change its permissions, or leave it out.")
    kept = "Finished work is kept:"
    if error.errno in NO_ROOM:
        return UserError(
            f"Cannot write to {path}: {reason_of(error)}. {kept} make room, and run the same command again."
        )
    return UserError(f"Reading or writing {path} failed: {reason_of(error)}. {kept} run the same command again.")


def unforeseen(error: OSError) -> str:
    """The message for an error with a path that no command has explained."""
    if error.errno in NO_ROOM:
        advice = "Make room, and run the same command again."
    elif is_lasting(error):
        advice = "Choose another path, or change its permissions."
    else:
        advice = "Run the same command again."
    return f"Cannot read or write {error.filename}: {reason_of(error)}. {advice}"
