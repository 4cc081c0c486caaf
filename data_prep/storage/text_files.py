"""Read text files of users, local or remote: whole, by line, or as JSON lines."""

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any, TypeVar

import orjson  # stricter than json: refuses lone surrogates, deep nesting, huge integers

from data_prep.common.errors import UnusableInput, working_directory
from data_prep.common.files import open_plain
from data_prep.common.urls import file_name, is_url, open_remote, remote_errors, shown
from data_prep.storage.compressed import DamagedStream, decompressed_chunks

T = TypeVar("T")

_MAX_BYTES = 1 << 30  # of a file that is read whole
_FREE_BYTES, _MOST_TIMES = 64 << 20, 100  # of its content: this, or so often its size


def load_text(path: str) -> str:
    """Read the text of a file or URL. Names that end in .gz or .zst are decompressed.

    Raises UserError if the file cannot be read, is not UTF-8, is empty, or has more than 1 GiB.
    """
    with _errors(path):
        data = _decompressed(path, _content(path))
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()  # any line ending
    if not text.strip():
        raise UnusableInput(f"{shown(path)} is empty. Name a file with text.")
    return text


def read_lines(path: str) -> Iterator[tuple[str, str]]:
    """Yield the lines that are not blank, each with its place: "FILE, line N". Raises UserError as `load_text`."""
    name = shown(path)
    for number, line in enumerate(load_text(path).split("\n"), 1):
        if line.strip():
            yield f"{name}, line {number}", line


def read_json_lines(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield JSON objects, one a line, each with its place. Raises UserError also for another line."""
    for place, line in read_lines(path):
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise UnusableInput(f"{place} is not JSON. Name a .jsonl file, with a JSON object in each line.") from None
        if not isinstance(value, dict):
            raise UnusableInput(f"{place} is not a JSON object. Write one in each line.")
        yield place, value


def json_line_files(path: str) -> list[str]:
    """The path itself; of a local folder, its .jsonl files, also compressed, by name.

    Raises UserError for a folder without one.
    """
    if is_url(path) or not os.path.isdir(path):
        return [path]
    names = sorted(name for name in os.listdir(path) if name.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst")))
    if not names:
        raise UnusableInput(f"The folder {path} has no .jsonl file. Name a file, or a folder of them.")
    return [os.path.join(path, name) for name in names]


def spread(items: list[T], count: int | None) -> list[T]:
    """Select `count` evenly spaced items; all of them if there are fewer, or without a count."""
    if count is None or count >= len(items):
        return items
    return [items[number * len(items) // count] for number in range(count)]


def require_file(path: str) -> None:
    """Raise UserError, as `load_text` does, if a local file cannot be opened."""
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
    if not is_url(path):
        with open_plain(path) as file:
            _check_size(path, os.fstat(file.fileno()).st_size)
            return file.read()
    remote = open_remote(path)
    with remote_errors(path):
        _check_size(path, remote.fs.size(remote.path) or 0)
        return remote.fs.cat_file(remote.path)


def _decompressed(path: str, data: bytes) -> bytes:
    """Decompress the content of .gz and .zst files. Raises DamagedStream also if a few bytes expand to very many."""
    chunks, size = [], 0
    for chunk in decompressed_chunks(io.BytesIO(data), file_name(path)):
        chunks.append(chunk)
        _check_size(path, size := size + len(chunk))
        if size > (most := max(_FREE_BYTES, _MOST_TIMES * len(data))):
            raise DamagedStream(f"its {len(data):,} bytes expand to more than {most:,}: decompress it yourself", 0)
    return b"".join(chunks)


def _check_size(path: str, size: int) -> None:
    if size > _MAX_BYTES:
        limit = f"{_MAX_BYTES >> 20:,} MiB"
        raise UnusableInput(f"{shown(path)} has more than {limit}, too much to be read whole. Name a part of it.")
