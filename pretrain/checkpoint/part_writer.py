"""Write one rank's part of a checkpoint: flush the files to disk, and hash them during the write."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import xxhash

from data_prep.files import fsync_path
from pretrain.checkpoint.manifest import Files


class Sink(Protocol):
    """A file-like object that accepts the bytes of a part."""

    def write(self, data: Any) -> int: ...

    def flush(self) -> None: ...


# File name relative to the checkpoint's folder -> function that writes the file.
Parts = dict[str, Callable[[Sink], None]]


def write_parts(folder: Path, parts: Parts) -> Files:
    """Write a rank's files, and make them and their folders durable.

    Returns:
        The size and checksum of each file.

    Raises:
        OSError: if the disk is full or fails; it names the file.
    """
    files: Files = {}
    for name, write in parts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        files[name] = _written(path, write)
    for parent in {(folder / name).parent for name in parts}:
        fsync_path(parent)
    return files


def _written(path: Path, write: Callable[[Sink], None]) -> dict[str, Any]:
    with open(path, "wb") as file:
        sink = _HashedFile(file)
        try:
            write(sink)
            file.flush()
            os.fsync(file.fileno())
        except (OSError, RuntimeError) as error:  # torch's writer turns an OSError into a RuntimeError
            cause = error if isinstance(error, OSError) else sink.error
            if cause is None:
                raise
            raise OSError(cause.errno, cause.strerror, str(path)) from None
    return {"bytes": sink.bytes, "xxh3_128": sink.digest.hexdigest()}


class _HashedFile:
    """A file that hashes its bytes during the write, so that no second read is needed."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.digest, self.bytes = xxhash.xxh3_128(), 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            count = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.digest.update(data)
        self.bytes += count
        return count

    def flush(self) -> None:
        self._file.flush()
