"""A bounded local cache of remote files and of parts of them, shared by the processes of a machine.

An entry is a file whose name tells its content. It appears by a rename, is never changed, and may be removed at any
moment: who reads a part holds it open, who uses a whole file holds a shared lock on it, which keeps it in place.
Fetching takes one of 256 locks, by the name, so that of several processes that want an entry one fetches it. Making
room takes one more, beside a file that holds the bytes of all entries; they are counted again only when the bound is
reached. Then a tenth of them goes, what was not used for longest first.
"""

import contextlib
import errno
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from data_prep.errors import NO_ROOM, UserError
from data_prep.files import file_lock, fsync_path, is_abandoned
from data_prep.urls import BACKOFF_SECONDS, identity, is_url, open_remote, remote_errors, retried, shown

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maskwright"
CACHE_BYTES = 50_000_000_000
_POLL_SECONDS = 0.1
_PART = "-part"  # in the names of files that are being written


class _New(NamedTuple):
    """An entry to be made: its bytes, its name for messages, and what writes it to a path."""

    size: int
    name: str
    write: Callable[[Path], object]


class Cache:
    """Entries under `folder`, at most `max_bytes` of them, what is being written included.

    Safe for any number of processes and threads.
    """

    def __init__(
        self, folder: Path, max_bytes: int, wait_seconds: float = 3600, backoff_seconds: float = BACKOFF_SECONDS
    ) -> None:
        self.folder, self.max_bytes = Path(folder), max_bytes
        self.entries, self._locks = self.folder / "entries", self.folder / "locks"
        self._room, self._bytes = self._locks / "room", self._locks / "bytes"
        self._wait_seconds, self._backoff_seconds = wait_seconds, backoff_seconds

    @contextlib.contextmanager
    def local(self, location: str) -> Iterator[Path]:
        """A local path with the bytes of a file, valid until the block ends; a local `location` is its own.

        Raises UserError for a file that cannot be had or is larger than the bound, and where all the room is in use
        for longer than `wait_seconds`.
        """
        if not is_url(location):
            yield Path(location)
            return
        remote = open_remote(location)
        with remote_errors(location):
            known = retried(lambda: identity(remote), self._backoff_seconds)

        def refuse(size: int) -> None:
            self._refuse(size, shown(location))

        def download(path: Path) -> None:
            remote.fs.get_file(
                remote.path, str(path), callback=_limit(lambda size: self._refuse(size, shown(location)))
            )
            size = path.stat().st_size
            self._refuse(size, shown(location))
            if known.size not in (None, size):
                raise OSError(f"{size} of its {known.size} bytes arrived")
            fsync_path(path)  # its name alone says later that it is complete

        def write(path: Path) -> None:
            with remote_errors(location):
                retried(lambda: download(path), self._backoff_seconds)

        def make() -> _New:
            # A size that is not told is found out by the download, which takes all the room there may be.
            return _New(self.max_bytes if known.size is None else known.size, shown(location), write)

        key = xxhash.xxh3_128_hexdigest(f"{location}\n{known.size}\n{known.version}".encode())
        descriptor = self._entry(key, make, keep=True)
        try:
            yield self.entries / key
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def open(self, key: str, fetch: Callable[[], bytes]) -> Iterator[int]:
        """A descriptor to read the part `key` (hexadecimal) from, valid until the block ends.

        If it is not there, `fetch` is called for its bytes. Those it returns are kept as they are: it must check them,
        and who reads a part must check it again, since disks fail and caches are tampered with.

        Raises:
            UserError: if the part is larger than the bound, or the folder cannot be used.
        """

        def make() -> _New:
            data = fetch()
            return _New(len(data), "a part of a data set", lambda path: path.write_bytes(data))

        with self._errors():
            descriptor = self._entry(key, make, keep=False)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def drop(self, key: str) -> None:
        """Forget a part that was found damaged."""
        (self.entries / key).unlink(missing_ok=True)

    def _entry(self, key: str, make: Callable[[], _New], keep: bool) -> int:
        """A descriptor of an entry, new if there is none; with `keep`, the entry stays until that is closed."""
        with self._errors():
            if (descriptor := self._opened(key, keep)) is not None:
                return descriptor
            for folder in (self.entries, self._locks):
                folder.mkdir(parents=True, exist_ok=True)
            with file_lock(self._locks / key[:2]):
                descriptor = self._opened(key, keep)  # another process may have been faster
                return self._stored(key, make(), keep) if descriptor is None else descriptor

    def _opened(self, key: str, keep: bool) -> int | None:
        try:
            descriptor = os.open(self.entries / key, os.O_RDONLY)
        except FileNotFoundError:
            return None
        if keep:
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # of filelock, no lock can be shared
            if not os.fstat(descriptor).st_nlink:  # removed meanwhile
                os.close(descriptor)
                return None
        with contextlib.suppress(PermissionError):  # another user's entry
            os.utime(descriptor)
        return descriptor

    def _stored(self, key: str, new: _New, keep: bool) -> int:
        self._refuse(new.size, new.name)
        try:
            return self._written(key, new, keep)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        with file_lock(self._room):  # others fill the disk: keep half of what there is
            self._bytes.write_text(str(self._make_room((self._total() or 0) // 2)))
        return self._written(key, new, keep)

    def _written(self, key: str, new: _New, keep: bool) -> int:
        stem, end = f".{key}-{threading.get_native_id()}", f"{socket.gethostname()}.{os.getpid()}.tmp"
        reserved, part = self.entries / f"{stem}.{end}", self.entries / f"{stem}{_PART}.{end}"
        try:
            self._reserve(reserved, new)
            new.write(part)
            descriptor = os.open(part, os.O_RDONLY)
            if keep:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            with file_lock(self._room):  # others count the one or the other
                os.replace(part, self.entries / key)
                reserved.unlink()
            return descriptor
        finally:
            part.unlink(missing_ok=True)
            reserved.unlink(missing_ok=True)

    def _reserve(self, path: Path, new: _New) -> None:
        """Make a file without content that counts as the new entry, as soon as there is room for it."""
        give_up = time.monotonic() + self._wait_seconds
        while not self._has_room(path, new.size):
            if time.monotonic() > give_up:
                raise UserError(
                    f"No room for {new.name} in the cache {self.folder}: all of its {self.max_bytes} bytes are in use; "
                    "raise its bound or use fewer processes."
                )
            time.sleep(_POLL_SECONDS)

    def _has_room(self, path: Path, size: int) -> bool:
        with file_lock(self._room):
            total = self._total()
            if total is None or total + size > self.max_bytes:
                total = self._make_room(min(self.max_bytes * 9 // 10, self.max_bytes - size))
            if fits := total + size <= self.max_bytes:
                with path.open("wb") as file:
                    file.truncate(size)
            self._bytes.write_text(str(total + size * fits))
        return fits

    def _total(self) -> int | None:
        """The bytes of all entries, as the file says; None if it does not."""
        try:
            return int(self._bytes.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _make_room(self, bound: int) -> int:
        """Remove the least recently used entries until the others have at most `bound` bytes; how many they have."""
        found, total = [], 0
        for path in self.entries.iterdir():
            if path.name.startswith(".") and is_abandoned(path):
                path.unlink(missing_ok=True)
            elif _PART not in path.name:
                with contextlib.suppress(FileNotFoundError):  # dropped meanwhile
                    status = path.stat()
                    total += status.st_size
                    found.append((status.st_mtime_ns, status.st_size, path))
        for _, size, path in sorted(found):
            if total <= bound:
                break
            if not path.name.startswith(".") and _removed(path):
                total -= size
        return total

    def _refuse(self, size: int, name: str) -> None:
        if size > self.max_bytes:
            raise UserError(
                f"{name} has {size} bytes or more, and the cache {self.folder} may hold {self.max_bytes}; raise its "
                "bound."
            )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """What the system says of the folder, in one sentence."""
        try:
            yield
        except OSError as error:
            reason = "its disk is full" if error.errno in NO_ROOM else error.strerror
            advice = "; put it on a local disk" if error.errno in (errno.ENOLCK, errno.ENOSYS) else ""
            raise UserError(f"The cache folder {self.folder} cannot be used: {reason}{advice}.") from error


def _removed(path: Path) -> bool:
    """Remove an entry, unless a process uses it; whether it is gone."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        pass
    return True


def _limit(refuse: Callable[[int], None]) -> Any:
    """An fsspec callback that calls `refuse` with the bytes so far, to end a download larger than the bound."""
    from fsspec.callbacks import Callback

    class Limit(Callback):
        def relative_update(self, inc: int = 1) -> None:
            super().relative_update(inc)
            refuse(self.value)

    return Limit()
