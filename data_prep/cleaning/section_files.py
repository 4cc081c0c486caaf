"""Section files: many byte strings in one file. A reader of one section reads and checks only that section.

Layout: the parts of the sections in the order of writing; then the start, size and xxh3_64 of each part, uint64
[n_parts, n_sections, 3]; then n_parts and n_sections, uint64 [2]. All numbers are little-endian.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash

from data_prep.common.errors import DamagedData, UserError
from data_prep.common.files import atomic_writer
from data_prep.common.reading import open_regular

_ENTRY, _COUNTS = 24, 16  # bytes


@contextlib.contextmanager
def section_writer(path: Path, sections: int) -> Iterator[Callable[[Iterable[bytes]], None]]:
    """A function that takes one part for each section, in order. The file appears when the block ends."""
    entries: list[tuple[int, int, int]] = []
    with atomic_writer(path) as file:

        def add(parts: Iterable[bytes]) -> None:
            for part in parts:
                entries.append((file.tell(), len(part), xxhash.xxh3_64_intdigest(part)))
                file.write(part)

        yield add
        index = np.array(entries, "<u8").reshape(-1, sections, 3)
        file.write(index.tobytes() + np.array(index.shape[:2], "<u8").tobytes())


def section_size(path: Path, section: int) -> int:
    """The bytes of a section. Raises DamagedData as `read_section`."""
    with _opened(path) as file:
        return sum(size for _, size, _ in _entries(file, section))


def read_section(path: Path, section: int) -> Iterator[bytes]:
    """The parts of a section. Raises DamagedData if the file is missing or damaged, or has no such section."""
    with _opened(path) as file:
        for start, size, checksum in _entries(file, section):
            file.seek(start)
            part = file.read(size)
            if len(part) != size or xxhash.xxh3_64_intdigest(part) != checksum:
                raise ValueError(f"section {section} has another checksum")
            yield part


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with open_regular(path) as file:
            yield file
    except (UserError, ValueError, OverflowError) as error:
        raise DamagedData(f"{path} is missing or damaged ({error}).") from error


def _entries(file: BinaryIO, section: int) -> list[list[int]]:
    """Start, size and checksum of the parts of a section. Raises ValueError if they are not in the file."""
    index_end = os.fstat(file.fileno()).st_size - _COUNTS
    file.seek(max(0, index_end))
    parts, sections = np.frombuffer(file.read(_COUNTS), "<u8", 2).tolist()
    index_start = index_end - parts * sections * _ENTRY
    if section >= sections or index_start < 0:
        raise ValueError(f"it has no section {section}")
    entries = []
    for part in range(parts):
        file.seek(index_start + (part * sections + section) * _ENTRY)
        start, size, checksum = np.frombuffer(file.read(_ENTRY), "<u8").tolist()
        if start + size > index_start:
            raise ValueError(f"section {section} does not end in the file")
        entries.append([start, size, checksum])
    return entries
