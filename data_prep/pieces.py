"""A bounded local cache of parts of remote files, small and many, shared by the processes of a machine.

A piece is a file whose name tells its content. It appears by a rename, is never changed, and may be removed at any
moment: who reads it holds it open. So reading takes no lock. Fetching takes one of 256, by the name, so that of several
processes that want a piece one fetches it. Making room takes one more, on a file that holds the bytes of all pieces;
they are counted anew only when the bound is reached. Then a tenth of them goes, what was not used for longest first.
"""

import contextlib
import fcntl
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from data_prep.cache import full_disk, locked, make_folder
from data_prep.errors import UserError
from data_prep.file_errors import NO_ROOM
from data_prep.files import is_abandoned


class PieceCache:
    """Pieces under `folder`, at most `max_bytes` of them, what is being written included."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._pieces, self._locks = folder / "pieces", folder / "locks"

    @contextlib.contextmanager
    def open(self, key: str, fetch: Callable[[], bytes]) -> Iterator[int]:
        """A descriptor to read the piece `key` (hexadecimal) from, valid until the block ends.

        If it is not there, `fetch` is called for its bytes. Those it returns are kept as they are: it must check them,
        and who reads a piece must check it again, since disks fail and caches are tampered with.

        Raises:
            UserError: if the piece is larger than the bound, or the folder cannot be used.
        """
        descriptor = self._opened(key)
        if descriptor is None:
            make_folder(self._pieces)
            make_folder(self._locks)
            with locked(self._locks / key[:2], fcntl.LOCK_EX):
                descriptor = self._opened(key)  # another process may have been faster
                if descriptor is None:
                    descriptor = self._stored(key, fetch())
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def drop(self, key: str) -> None:
        """Forget a piece that was found damaged."""
        (self._pieces / key).unlink(missing_ok=True)

    def _opened(self, key: str) -> int | None:
        try:
            descriptor = os.open(self._pieces / key, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with contextlib.suppress(PermissionError):  # another user's piece
            os.utime(descriptor)
        return descriptor

    def _stored(self, key: str, data: bytes) -> int:
        if len(data) > self.max_bytes:
            raise UserError(
                f"A part of {len(data)} bytes is to be kept in the cache {self.folder}, which may hold "
                f"{self.max_bytes}; raise its bound."
            )
        try:
            return self._written(key, data)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        self._give_way()
        with full_disk(self.folder):
            return self._written(key, data)

    def _written(self, key: str, data: bytes) -> int:
        thread = threading.get_native_id()
        temporary = self._pieces / f".{key}-{thread}.{socket.gethostname()}.{os.getpid()}.tmp"
        descriptor = self._reserved(temporary, len(data))
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(descriptor, memoryview(data)[done:], done)
            os.replace(temporary, self._pieces / key)
        except BaseException:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
            raise
        return descriptor

    def _reserved(self, temporary: Path, size: int) -> int:
        """A new file of `size` bytes, so that it counts from now on, in room that has been made for it."""
        with self._room() as room:
            total = _number(room)
            if total is None or total + size > self.max_bytes:
                total = self._make_room(min(self.max_bytes * 9 // 10, self.max_bytes - size))
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            os.ftruncate(descriptor, size)
            os.pwrite(room, f"{total + size:20}".encode(), 0)
        return descriptor

    def _give_way(self) -> None:
        """Others fill the disk: keep half of what there is."""
        with self._room() as room:
            os.pwrite(room, f"{self._make_room((_number(room) or 0) // 2):20}".encode(), 0)

    @contextlib.contextmanager
    def _room(self) -> Iterator[int]:
        while True:
            with locked(self.folder / "room", fcntl.LOCK_EX) as room:
                if room is not None:
                    yield room
                    return

    def _make_room(self, bound: int) -> int:
        """Remove the least recently used pieces until the others have at most `bound` bytes; how many they have."""
        found, total = [], 0
        with os.scandir(self._pieces) as entries:
            for entry in entries:
                if entry.name.startswith(".") and is_abandoned(Path(entry.path)):
                    Path(entry.path).unlink(missing_ok=True)
                    continue
                with contextlib.suppress(FileNotFoundError):  # renamed or dropped meanwhile
                    status = entry.stat()
                    total += status.st_size
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
        found.sort()
        for _, size, path in found:
            if total <= bound:
                break
            if not os.path.basename(path).startswith("."):
                Path(path).unlink(missing_ok=True)
                total -= size
        return total


def _number(room: int) -> int | None:
    """The bytes of all pieces, as the file says; None if it does not."""
    try:
        return int(os.pread(room, 20, 0))
    except ValueError:
        return None
