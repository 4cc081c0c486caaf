"""Durable writes, locks, and opening of regular files.

A file exists under its final name only when all of its bytes are on disk.
"""

import contextlib
import errno
import glob
import hashlib
import json
import mmap
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from data_prep.errors import UserError, cannot_write

_POLL_SECONDS = 0.02  # between two attempts to take a lock
ABANDONED_SECONDS = 24 * 3600  # age at which another host's temporary file is taken for left behind


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}


class LockHeldError(Exception):
    """Another process, or another thread, holds a lock."""


@contextlib.contextmanager
def file_lock(path: Path, wait: bool = True, needed: bool = True) -> Iterator[bool]:
    """Hold a lock on the file `path`, made if it is missing, while the block runs or until this process ends.

    Gives whether it is locked.

    Args:
        wait: for another holder.
        needed: else the block also runs where no such file can be made or locked, as on some network file systems.

    Raises:
        LockHeldError: if another one holds it, without `wait`. OSError: if it is `needed` and cannot be locked.
    """
    from filelock import FileLock, Timeout  # 50 ms, for what many commands do not need

    lock = FileLock(path)
    try:
        path.parent.stat()  # FileLock would make it
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
    """Make a file's bytes durable; of a folder, its renames and new entries."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Make every file and folder in `folder`, and the folder itself, durable."""
    for path, _, names in os.walk(folder):
        for name in names:
            fsync_path(Path(path, name))
        fsync_path(Path(path))


def make_folder(path: Path) -> None:
    """Make a folder, and the folders above it that are missing, durably; it may be there already."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        fsync_path(folder.parent)


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears at `path`, complete and on disk, when the block ends without an exception.

    Raises:
        OSError: with `path` as its file name, where the disk takes no more.
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
        if error.filename is None:  # of a write or a flush
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder that appears at `path`, complete and on disk, when the block ends without an exception.

    It replaces an empty folder. Temporary folders of killed writers are removed.

    Raises:
        OSError: if `path` cannot be made, or is by then something else than an empty folder.
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
    """Where `path` is written first. Host and process id keep two writers of one path apart."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")


def is_abandoned(temporary: Path) -> bool:
    """Whether a file of atomic_writer or a folder of atomic_folder has no writer any more.

    One of this host is told by its process, others by their age.
    """
    pid = temporary.name.split(".")[-2]
    if pid.isdecimal() and temporary.name.endswith(f".{socket.gethostname()}.{pid}.tmp"):
        import psutil  # 10 ms, for what is seldom needed

        try:  # in a container without an init process, a killed orphan stays a zombie for ever
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
    """Opener of files that are changed in place: a symbolic link in a foreign folder may lead to any file.

    Raises:
        OSError: naming the link.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = "is a symbolic link; put the file itself there"
        raise


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically as indented JSON with a trailing newline."""
    with atomic_writer(path) as file:
        file.write(json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")


def refuse_file(folder: Path) -> None:
    """Raise UserError if a folder to be made, or one above it, is a file."""
    try:
        there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    except OSError as error:  # a name that is too long, or a folder that this user may not look into
        raise cannot_write(folder, error) from None
    if there is not None and not there.is_dir():
        raise UserError(f"{there} is a file; choose another folder for the output.")


def check_writable(path: Path, option: str = "--out", inside: bool = False) -> None:
    """Raise UserError if nothing can be made where `path`, which `option` names, is to be: before hours of work.

    With `inside`, `path` may be a folder that is there already, to which files are added.
    """
    first = [path.absolute()] if inside else []
    there = next(folder for folder in (*first, *path.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise cannot_write(path, error, option) from None


def open_plain(path: Path | str, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading. Anything else is refused without being opened, so that nothing blocks.

    Args:
        follow: symbolic links; else they are refused as well.

    Raises:
        OSError: if there is none, it is something else, or it cannot be opened. ValueError: if its name has a NUL.
    """
    _require_regular(path, os.stat(path, follow_symlinks=follow).st_mode)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = os.open(path, flags | (0 if follow else os.O_NOFOLLOW))
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)  # it may have been replaced meanwhile
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def _require_regular(path: Path | str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a regular file's bytes; raises OSError."""
    with open_plain(path) as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()


def map_file(file: Path | int) -> mmap.mmap:
    """The bytes of a file or open descriptor, read as they are asked for; raises OSError, ValueError if it is empty."""
    if isinstance(file, int):
        return mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    with open(file, "rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def read_into(descriptor: int, out: memoryview, offset: int) -> int:
    """Read the bytes from `offset` on into `out`; how many there were, fewer than asked for at the end of the file."""
    done = 0
    while done < len(out):
        count = os.preadv(descriptor, [out[done:]], offset + done)
        if not count:
            break
        done += count
    return done
