"""Durable writes, locks, append-only files, and reading of regular files.

A file gets its final name only when all of its bytes are on disk.
"""

import contextlib
import errno
import glob
import hashlib
import json
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from data_prep.common.errors import UserError, cannot_write

MAX_LINE_BYTES = 16 << 20  # of a line of a journal
_TAIL_BYTES = 1 << 16  # of one read for the last newline
_POLL_SECONDS = 0.02  # between two attempts to take a lock
ABANDONED_SECONDS = 24 * 3600  # age at which a temporary file of another host counts as abandoned
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}


class LockHeldError(Exception):
    """Another process or thread holds the lock."""


@contextlib.contextmanager
def file_lock(path: Path, wait: bool = True, needed: bool = True) -> Iterator[bool]:
    """Hold a lock on the file `path` while the block runs, and yield whether it is locked. Creates a missing file.

    Args:
        wait: for another holder.
        needed: if not, the block also runs if the file cannot be locked, as on some network file systems.

    Raises:
        LockHeldError: if the lock is held, without `wait`. OSError: if it is `needed` and cannot be taken.
    """
    from filelock import FileLock, Timeout  # takes 50 ms; many commands need no lock

    lock = FileLock(path)
    try:
        path.parent.stat()  # FileLock would create it
        lock.acquire(-1 if wait else 0, poll_interval=_POLL_SECONDS)
    except Timeout:
        raise LockHeldError from None
    except OSError:
        if needed:
            raise
    try:
        yield lock.is_locked
    finally:
        lock.release()


def fsync_path(path: Path) -> None:
    """Make the bytes of a file durable, or the entries of a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Make a folder and everything in it durable."""
    for path, _, names in os.walk(folder):
        for name in names:
            fsync_path(Path(path, name))
        fsync_path(Path(path))


def make_folder(path: Path) -> None:
    """Create a folder durably, with missing parents; it may exist."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        fsync_path(folder.parent)


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears at `path`, complete and durable, when the block ends without an exception.

    A failed write raises OSError with `path` as its file name.
    """
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        fsync_path(path.parent)
    except OSError as error:
        if error.filename is None:  # a write or a flush failed
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder that appears at `path`, complete and durable, when the block ends without an exception.

    It replaces an empty folder; anything else at `path` raises OSError. Removes temporary folders of killed writers.
    """
    path = path.absolute()
    make_folder(path.parent)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        if is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
        fsync_tree(temporary)
        temporary.rename(path)
        fsync_path(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    """The temporary path for `path`. Two writers have different ones, by host and process id."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")


def is_abandoned(temporary: Path) -> bool:
    """Whether the writer of a temporary file or folder is gone, by its process or, on another host, by the age."""
    pid = temporary.name.split(".")[-2]
    if pid.isdecimal() and temporary.name.endswith(f".{socket.gethostname()}.{pid}.tmp"):
        import psutil  # takes 10 ms and is rarely needed

        try:  # in a container without an init process, a killed orphan stays a zombie
            return psutil.Process(int(pid)).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False
    try:
        return time.time() - temporary.stat().st_mtime > ABANDONED_SECONDS
    except FileNotFoundError:
        return False


def no_link(path: str, flags: int) -> int:
    """An opener for files changed in place. It refuses symbolic links, which can lead to any file, and other types.

    Raises OSError. It never waits, as opening a pipe does.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = "is a symbolic link; put the file itself there"
        raise
    return _regular(path, descriptor)


def refuse_link(path: Path) -> Path:
    """`path`. Raises UserError if it is a symbolic link: a folder of somebody else could lead to any place."""
    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link, which can lead to any place. Put what it leads to there itself.")
    return path


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_writer(path) as file:
        file.write(content)


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically as indented JSON with a trailing newline."""
    write_file(path, json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")


def free_folder(out: Path) -> Path:
    """The absolute path of a folder to write. Raises UserError if something is there."""
    place = out.absolute()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UserError(f"{place} exists and is not an empty folder. Remove it, or choose another --out.")
    return place


def check_writable(path: Path, option: str = "--out", inside: bool = False) -> None:
    """Raise UserError if `path`, which `option` names, cannot be created. Call it before hours of work.

    With `inside`, `path` may be an existing folder that gets more files, but no file.
    """
    first = [path.absolute()] if inside else []
    try:
        existing = next(folder for folder in (*first, *path.absolute().parents) if folder.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise cannot_write(path, error, option) from None


def open_plain(path: Path | str, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading. Other types are refused before they are opened, because that could block.

    Raises OSError for another type, a symbolic link without `follow`, and a file that cannot be opened; ValueError for
    a name with NUL.
    """
    _require_regular(path, os.stat(path, follow_symlinks=follow).st_mode)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    return open(_regular(path, os.open(path, flags | (0 if follow else os.O_NOFOLLOW))), "rb")


def open_below(folder: Path, name: str) -> BinaryIO:
    """Open the regular file `name` below a folder that may come from somebody else, to send or copy what it holds.

    Args:
        name: a relative path. None of its parts may be a symbolic link or `..`, which could lead out of the folder.

    Raises:
        OSError, ValueError: as open_plain.
    """
    path, parts = folder, Path(name).parts
    if not parts or ".." in parts or Path(name).is_absolute():
        raise OSError(errno.EINVAL, "it is not a file of this folder", f"{folder}/{name}")
    for part in parts[:-1]:
        path = path / part
        if path.is_symlink():
            raise OSError(errno.EINVAL, "it is a symbolic link, not a folder", str(path))
    return open_plain(folder / name, follow=False)


def _regular(path: Path | str, descriptor: int) -> int:
    """`descriptor`, if it is of a regular file; it may have been replaced since it was examined."""
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(path: Path | str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def limited_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(bytes, line) of each line of a file from its position on. The last line may lack its newline.

    Memory holds at most 16 MiB: of a longer line, only the newline is returned.
    """
    while line := file.readline(MAX_LINE_BYTES + 1):
        size = len(line)
        if size > MAX_LINE_BYTES:
            while not line.endswith(b"\n") and (more := file.readline(MAX_LINE_BYTES)):
                line, size = more, size + len(more)
            line = b"\n" if line.endswith(b"\n") else b""
        yield size, line


def text_or_none(path: Path) -> str | None:
    """The text of a regular file without blanks at its ends; None if it cannot be read. Reads at most 16 MiB."""
    try:
        with open_plain(path) as file:
            return file.read(MAX_LINE_BYTES).decode(errors="replace").strip()
    except (OSError, ValueError):
        return None


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a regular file. Raises OSError."""
    with open_plain(path) as file:
        return hash_stream(file, hashlib.sha256())


def hash_stream(file: BinaryIO, digest: Any, progress: Callable[[int], None] | None = None) -> str:
    """The hexadecimal hash of a file. digest: a new hash object. progress: called with the size of each part read."""
    while chunk := file.read(1 << 20):
        digest.update(chunk)
        if progress:
            progress(len(chunk))
    return str(digest.hexdigest())


class HashedFile:
    """A file that hashes and counts the bytes written to it, and keeps the error of a failed write.

    digest: a new hash object.
    """

    def __init__(self, file: BinaryIO, digest: Any) -> None:
        self._file, self.digest, self.bytes = file, digest, 0
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


def read_into(descriptor: int, out: memoryview, offset: int) -> int:
    """Fill `out` with the bytes from `offset` on; return their number, which is smaller at the end of the file."""
    done = 0
    while done < len(out):
        count = os.preadv(descriptor, [out[done:]], offset + done)
        if not count:
            break
        done += count
    return done


def _whole_lines(file: BinaryIO) -> tuple[int, int]:
    """The bytes of a file up to its last newline, and all its bytes. Reads from the end, without a memory map."""
    start = size = file.seek(0, os.SEEK_END)
    while start:
        end, start = start, max(0, start - _TAIL_BYTES)
        file.seek(start)
        if newline := file.read(end - start).rfind(b"\n") + 1:
            return start + newline, size
    return 0, size


class AppendLog:
    """Appends whole lines to the file at `path`; one process writes, any number may read meanwhile."""

    def __init__(self, path: Path) -> None:
        """Open for appending. An incomplete last line, left by a kill, is dropped."""
        self._file = open(path, "ab", buffering=0, opener=no_link)  # noqa: SIM115 - lives as long as this object
        self._unwritten = b""
        with open_plain(path) as file:
            whole, size = _whole_lines(file)
        if whole < size:
            self._file.truncate(whole)

    def append(self, lines: bytes) -> None:
        """Hand lines, each with its newline, to the operating system: they survive the death of this process.

        Raises OSError, leaving no half line, where the disk is full or gone. The lines are then kept, and written
        before the next ones.
        """
        self._unwritten += lines
        written = 0
        try:
            while written < len(self._unwritten):  # one write may take only a part
                written += self._file.write(self._unwritten[written:])
        except OSError:
            if written:
                self._file.truncate(os.fstat(self._file.fileno()).st_size - written)
            raise
        self._unwritten = b""

    def close(self) -> None:
        self._file.close()
