"""Read text files of users, local or remote: examples and sentences."""

import contextlib
import io
from collections.abc import Iterator

from data_prep.errors import UnusableInput, working_directory
from data_prep.files import open_plain
from data_prep.storage import decompressed_chunks
from data_prep.urls import file_name, is_url, open_remote, remote_errors, shown


def read_text(path: str) -> str:
    """Read the text of a file or URL. Names that end in .gz or .zst are decompressed.

    Raises UserError if the file cannot be read, is not UTF-8, or is empty.
    """
    with _errors(path):
        stored = io.BytesIO(_download(path) if is_url(path) else _content(path))
        data = b"".join(decompressed_chunks(stored, file_name(path)))
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()  # any line ending
    if not text.strip():
        raise UnusableInput(f"{shown(path)} is empty. Name a file with text.")
    return text


def require_file(path: str) -> None:
    """Raise UserError, as `read_text` does, if a local file cannot be opened."""
    if not is_url(path):
        with _errors(path):
            open_plain(path).close()


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    """Turn read errors into a UserError."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UnusableInput(f"{shown(path)} is not a text in UTF-8 (byte {error.start}). Save it as UTF-8.") from None
    except FileNotFoundError:
        raise UnusableInput(f"No file {path}{working_directory(path)}. Correct the path.") from None
    except IsADirectoryError:
        raise UnusableInput(f"{path} is a folder. Name a file in it.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnusableInput(f"{shown(path)} cannot be read: {reason}. Check the file.") from None


def _content(path: str) -> bytes:
    with open_plain(path) as file:
        return file.read()


def _download(url: str) -> bytes:
    remote = open_remote(url)
    with remote_errors(url):
        data: bytes = remote.fs.cat_file(remote.path)
        return data
