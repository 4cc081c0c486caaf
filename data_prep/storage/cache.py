"""A local cache of limited size for remote files and parts of them, shared by all processes of a machine.

The name of an entry identifies its content. An entry appears by a rename, never changes, and may be removed at any
time, unless a process uses it, which holds a shared lock on it. A fetch takes one of 256 locks, chosen by the name, so
only one process fetches an entry. The lock `room` protects the file `bytes`, the total size of the entries. At the
limit, the entries are counted, and the least recently used ones are removed until a tenth of the space is free.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from data_prep.common.errors import NO_ROOM, UserError
from data_prep.common.files import file_lock, fsync_path, is_abandoned, open_plain, refuse_link
from data_prep.common.urls import is_url, open_remote, remote_errors, remote_version, retried, shown

_POLL_SECONDS = 0.1
_WAIT_SECONDS = 3600  # for room
_PART = "-part"  # in the names of files that are being written
_KEY = "[0-9a-f]" * 32  # the names of entries; files of other names are never removed


class _NewEntry(NamedTuple):
    """An entry to create: its size, its name for messages, and a function that writes it to a path."""

    size: int
    name: str
    write: Callable[[Path], object]


class Cache:
    """Entries of at most `max_bytes` in `folder`, including those being written. Safe for processes and threads.

    The default folder is the one of `maskwright prep`.
    """

    def __init__(self, folder: str | Path | None = None, max_bytes: int = 50_000_000_000) -> None:
        default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "maskwright")
        self.folder, self.max_bytes = Path(folder or default).absolute(), max_bytes
        self.entries, self._locks = self.folder / "entries", self.folder / "locks"
        self._room, self._bytes = self._locks / "room", self._locks / "bytes"

    def record_of(self, locations: Sequence[str]) -> Path:
        """A folder in the user's default cache folder: the user named these locations, to read through this cache."""
        named = json.dumps([str(self.folder), *locations]).encode()
        return Cache().folder / "named" / hashlib.sha256(named).hexdigest()

    @contextlib.contextmanager
    def local(self, location: str) -> Iterator[Path]:
        """A local path with the content of a file, valid in the block. For a local `location` it is that path.

        Raises UserError if the file cannot be fetched or is larger than the limit, and if all space is in use for more
        than an hour.
        """
        if not is_url(location):
            yield Path(location)
            return
        remote, name = open_remote(location), shown(location)
        with remote_errors(location):
            known = retried(lambda: remote_version(remote))

        def download(path: Path) -> None:
            callback = _size_callback(lambda size: self._check_size(size, name))
            remote.fs.get_file(remote.path, str(path), callback=callback)
            size = path.stat().st_size
            self._check_size(size, name)
            if known.size not in (None, size):
                raise OSError(f"{size} of its {known.size} bytes arrived")
            fsync_path(path)  # later, the name alone proves that it is complete

        def write(path: Path) -> None:
            with remote_errors(location):
                retried(lambda: download(path))

        # A file of unknown size reserves all space.
        new = _NewEntry(self.max_bytes if known.size is None else known.size, name, write)
        key = xxhash.xxh3_128_hexdigest(f"{location}\n{known.size}\n{known.version}".encode())
        descriptor = self._entry(key, lambda: new)
        try:
            yield self.entries / key
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def open(self, key: str, fetch: Callable[[], bytes]) -> Iterator[int]:
        """A descriptor to read the part `key` (hexadecimal) from, valid in the block.

        For a missing part, `fetch` returns the bytes, which it must check. Readers must check them again, because disks
        fail. Raises UserError if the part is larger than the limit, or if the folder cannot be used.
        """

        def make() -> _NewEntry:
            data = fetch()
            return _NewEntry(len(data), "a part of a data set", lambda path: path.write_bytes(data))

        with self._errors():
            descriptor = self._entry(key, make)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def drop(self, key: str) -> None:
        """Remove a damaged part."""
        (self.entries / key).unlink(missing_ok=True)

    def _entry(self, key: str, make: Callable[[], _NewEntry]) -> int:
        """A descriptor of an entry, created if it is missing. The entry stays until the descriptor is closed."""
        with self._errors():
            if (descriptor := self._opened(key)) is not None:
                return descriptor
            for folder in (self.entries, self._locks):
                folder.mkdir(parents=True, exist_ok=True)
            with file_lock(self._locks / key[:2]):
                descriptor = self._opened(key)  # another process may have created it
                return self._stored(key, make()) if descriptor is None else descriptor

    def _opened(self, key: str) -> int | None:
        try:
            with open_plain(self.entries / key) as file:
                descriptor = os.dup(file.fileno())
        except FileNotFoundError:
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # filelock has no shared locks
        if not os.fstat(descriptor).st_nlink:  # removed by another process
            os.close(descriptor)
            return None
        with contextlib.suppress(PermissionError):  # another user's entry
            os.utime(descriptor)
        return descriptor

    def _stored(self, key: str, new: _NewEntry) -> int:
        self._check_size(new.size, new.name)
        try:
            return self._written(key, new)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        with file_lock(self._room):  # other files fill the disk: remove half of the entries
            refuse_link(self._bytes).write_text(str(self._make_room((self._total() or 0) // 2)))
        return self._written(key, new)

    def _written(self, key: str, new: _NewEntry) -> int:
        stem, end = f".{key}-{threading.get_native_id()}", f"{socket.gethostname()}.{os.getpid()}.tmp"
        reserved, part = self.entries / f"{stem}.{end}", self.entries / f"{stem}{_PART}.{end}"
        try:
            self._reserve(reserved, new)
            new.write(part)
            descriptor = os.open(part, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            with file_lock(self._room):  # so that others count exactly one of the two
                os.replace(part, self.entries / key)
                reserved.unlink()
            return descriptor
        finally:
            part.unlink(missing_ok=True)
            reserved.unlink(missing_ok=True)

    def _reserve(self, path: Path, new: _NewEntry) -> None:
        """Wait for room, and create a file without content that has the size of the new entry."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while not self._reserved(path, new.size):
            if time.monotonic() > deadline:
                raise UserError(
                    f"No room for {new.name} in the cache {self.folder}: all of its {self.max_bytes} bytes are in use; "
                    "raise its limit or use fewer processes."
                )
            time.sleep(_POLL_SECONDS)

    def _reserved(self, path: Path, size: int) -> bool:
        with file_lock(self._room):
            total = self._total()
            if total is None or total + size > self.max_bytes:
                total = self._make_room(min(self.max_bytes * 9 // 10, self.max_bytes - size))
            if fits := total + size <= self.max_bytes:
                with path.open("wb") as file:
                    file.truncate(size)
            refuse_link(self._bytes).write_text(str(total + size * fits))
        return fits

    def _total(self) -> int | None:
        """The total size of the entries as recorded; None if it is not known."""
        try:
            return int(self._bytes.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _make_room(self, limit: int) -> int:
        """Remove the least recently used entries until at most `limit` bytes are left; return the total size."""
        entries, total = [], 0
        for path in (path for form in (_KEY, f".{_KEY}-*.tmp") for path in self.entries.glob(form)):
            if path.name.startswith(".") and is_abandoned(path):
                path.unlink(missing_ok=True)
            elif _PART not in path.name:
                with contextlib.suppress(FileNotFoundError):  # removed by another process
                    status = path.stat()
                    total += status.st_size
                    entries.append((status.st_mtime_ns, status.st_size, path))
        for _, size, path in sorted(entries):
            if total <= limit:
                break
            if not path.name.startswith(".") and _removed(path):
                total -= size
        return total

    def _check_size(self, size: int, name: str) -> None:
        if size > self.max_bytes:
            raise UserError(
                f"{name} has {size} bytes or more, and the cache {self.folder} may hold {self.max_bytes}; raise its "
                "limit."
            )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise UserError if the folder cannot be used."""
        try:
            yield
        except OSError as error:
            reason = "its disk is full" if error.errno in NO_ROOM else error.strerror
            advice = "; put it on a local disk" if error.errno in (errno.ENOLCK, errno.ENOSYS) else ""
            raise UserError(f"The cache folder {self.folder} cannot be used: {reason}{advice}.") from error


def _removed(path: Path) -> bool:
    """Remove an entry unless a process uses it; return whether it is gone."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        pass
    return True


def _size_callback(check: Callable[[int], None]) -> Any:
    """An fsspec callback that calls `check` with the bytes so far, which can stop a download."""
    from fsspec.callbacks import Callback

    class SizeCallback(Callback):
        def relative_update(self, inc: int = 1) -> None:
            super().relative_update(inc)
            check(self.value)

    return SizeCallback()
