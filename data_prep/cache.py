"""A bounded local cache of whole remote files, shared by the processes of a machine.

Each file has a lock file that holds its size from before its download until after its removal. A shared lock on it
means "in use", an exclusive one "being downloaded or removed"; its modification time is that of the last use. Room is
made under one more lock, so that the sizes always add up to less than the bound. Parts of files, small and many, are
kept in another way: pieces.py.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from data_prep.errors import UserError
from data_prep.file_errors import NO_ROOM
from data_prep.files import fsync_path
from data_prep.remote import (
    BACKOFF_SECONDS,
    Identity,
    Remote,
    identity,
    is_url,
    open_remote,
    remote_errors,
    retried,
    shown,
)

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maskwright"
CACHE_BYTES = 50_000_000_000


class LocalCache:
    """Remote files under `folder`, at most `max_bytes` of them; safe for any number of processes and threads."""

    def __init__(
        self, folder: Path, max_bytes: int, wait_seconds: float = 3600, backoff_seconds: float = BACKOFF_SECONDS
    ) -> None:
        self.folder, self.max_bytes = Path(folder), max_bytes
        self.wait_seconds, self.backoff_seconds = wait_seconds, backoff_seconds

    @contextlib.contextmanager
    def local(self, location: str) -> Iterator[Path]:
        """A local path with the file's bytes, valid until the block ends; a local `location` is its own.

        Raises UserError for a file that cannot be had or is larger than the bound, and where all the room is in use
        for longer than `wait_seconds`.
        """
        if not is_url(location):
            yield Path(location)
            return
        remote = open_remote(location)
        with remote_errors(location):
            known = retried(lambda: identity(remote), self.backoff_seconds)
        key = xxhash.xxh3_128_hexdigest(f"{location}\n{known.size}\n{known.version}".encode())
        with self._held(key, location, remote, known) as path:
            yield path

    @contextlib.contextmanager
    def _held(self, key: str, location: str, remote: Remote, known: Identity) -> Iterator[Path]:
        """The cached file, downloaded if need be, under a shared lock."""
        make_folder(self.folder)
        path, lock_path = self.folder / f"{key}.data", self.folder / f"{key}.lock"
        while True:
            with locked(lock_path, fcntl.LOCK_SH) as lock:
                if lock is not None and path.exists():
                    os.utime(lock)
                    yield path
                    return
            with locked(lock_path, fcntl.LOCK_EX) as lock:
                if lock is not None and not path.exists():
                    self._download(lock, path, location, remote, known)

    def _download(self, lock: int, path: Path, location: str, remote: Remote, known: Identity) -> None:
        part = path.with_suffix(".part")

        def fetch() -> None:
            # A size that is not told is found out by the download, which takes all the room there may be.
            self._reserve(lock, self.max_bytes if known.size is None else known.size, location)
            remote.fs.get_file(remote.path, str(part), callback=self._limit(location))
            size = part.stat().st_size
            if known.size is not None and size != known.size:
                raise OSError(f"{size} of its {known.size} bytes arrived")
            if known.size is None:
                self._reserve(lock, size, location)

        try:
            with remote_errors(location), full_disk(self.folder):
                retried(fetch, self.backoff_seconds)
                fsync_path(part)  # its name alone says later that it is complete
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            os.ftruncate(lock, 0)
            raise

    def _limit(self, location: str) -> Any:
        """An fsspec callback that ends a download larger than the bound."""
        from fsspec.callbacks import Callback

        refuse = self._refuse

        class Limit(Callback):
            def relative_update(self, inc: int = 1) -> None:
                super().relative_update(inc)
                refuse(self.value, location)

        return Limit()

    def _refuse(self, size: int, location: str) -> None:
        if size > self.max_bytes:
            raise UserError(
                f"{shown(location)} has {size} bytes or more, and the cache may hold {self.max_bytes}; raise its bound."
            )

    def _reserve(self, lock: int, size: int, location: str) -> None:
        """Write `size` into the lock file once the sum of all sizes leaves room for it."""
        self._refuse(size, location)
        give_up = time.monotonic() + self.wait_seconds
        while True:
            with locked(self.folder / "room", fcntl.LOCK_EX) as room:
                os.ftruncate(lock, 0)
                if room is not None and self._make_room(size):
                    os.pwrite(lock, str(size).encode(), 0)
                    return
            if time.monotonic() > give_up:
                raise UserError(
                    f"No room for {shown(location)} in the cache {self.folder}: all of its {self.max_bytes} bytes are "
                    "in use; raise its bound or use fewer processes."
                )
            time.sleep(0.1)

    def _make_room(self, size: int) -> bool:
        """Remove the least recently used files until `size` bytes fit; whether they do."""
        locks = sorted((path.stat().st_mtime_ns, path) for path in self.folder.glob("*.lock"))
        sizes = {path: int(path.read_bytes() or 0) for _, path in locks}
        total = sum(sizes.values())
        for _, path in locks:
            if total + size <= self.max_bytes:
                break
            if sizes[path]:
                with locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB) as lock:
                    if lock is not None:
                        for suffix in (".data", ".part", ".lock"):  # the lock last: it holds the size
                            path.with_suffix(suffix).unlink(missing_ok=True)
                        total -= sizes[path]
        return total + size <= self.max_bytes


def make_folder(folder: Path) -> None:
    """Raises UserError where a cache cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The cache folder {folder} cannot be made: {error.strerror}.") from error


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """A cache whose disk is full, in one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise UserError(f"The disk of the cache folder {folder} is full.") from error


@contextlib.contextmanager
def locked(path: Path, mode: int) -> Iterator[int | None]:
    """A file descriptor of the lock file, locked; None if it was removed meanwhile or, without waiting, is taken."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"The cache folder {path.parent} cannot be used: {error.strerror}.") from error
    try:
        yield descriptor if _lock(descriptor, path, mode) else None
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode)
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        raise UserError(
            f"Files in {path.parent} cannot be locked ({error.strerror}); put the cache on a local disk."
        ) from error
