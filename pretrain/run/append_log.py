"""Append-only file of lines. It can be read during a write and after a kill."""

import os
from pathlib import Path

from data_prep.files import no_link


class AppendLog:
    """Appends whole lines to the file at `path`; one process writes, any number may read meanwhile."""

    def __init__(self, path: Path) -> None:
        """Open for appending. An incomplete last line, left by a kill, is dropped."""
        self._file = open(path, "ab", buffering=0, opener=no_link)  # noqa: SIM115 - lives as long as this object
        self._unwritten = b""
        whole = _length_of_whole_lines(path)
        if whole < os.path.getsize(path):
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


def _length_of_whole_lines(path: Path, chunk: int = 1 << 16) -> int:
    """Bytes up to and including the last newline, searched from the end."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - chunk)
            file.seek(start)
            if (newline := file.read(end - start).rfind(b"\n")) >= 0:
                return start + newline + 1
            end = start
    return 0
