"""Whether a shard's tar holds the members that its index tells of, and nothing else.

The tar is never unpacked and no size announced in it is believed: the index says where each header must stand, and
what stands there must announce that very member. So links, devices, long names, other paths and other files, which
other tar readers would follow, are named where they stand.
"""

import io
import tarfile
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from data_prep.format.integrity_checks import bit_members
from data_prep.format.shard_format import ENDS_DTYPE, block_key

TAR_BLOCK = 512
NPY_HEADER = 128
_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"5": "a folder",
    b"6": "a FIFO",
    b"L": "a GNU long name",
    b"K": "a GNU long link name",
    b"S": "a GNU sparse file",
    b"g": "a pax header for all members",
    b"x": "a pax header",
}


class Member(NamedTuple):
    """A member as the index has it; `payload` and `size` in bytes, the .npy header included; no `dtype`: JSON."""

    name: str
    payload: int
    size: int
    dtype: np.dtype | None
    elements: int


def expected_members(table: np.ndarray, dtype: np.dtype) -> Iterator[Member]:
    """The members of a tar in order, from its block table [blocks]; `dtype` is that of the tokens."""
    for record in table:
        key, documents, tokens = (
            block_key(record["task"], record["number"]),
            int(record["documents"]),
            int(record["tokens"]),
        )
        bits = bit_members(record.dtype)
        offsets = {name: int(record[f"{name}_offset"]) for name in sorted(("ends", "ids", "tokens", *bits))}
        arrays = {"ends": (ENDS_DTYPE, documents), "tokens": (dtype, tokens)}
        arrays |= dict.fromkeys(bits, (np.dtype("u1"), -(-tokens // 8)))
        for name, offset in offsets.items():
            if name in arrays and offset:
                kind, count = arrays[name]
                size = NPY_HEADER + count * kind.itemsize
                yield Member(f"{key}.{name}.npy", offset - NPY_HEADER, size, kind, count)
            elif offset:
                yield Member(f"{key}.{name}.json", offset, int(record["ids_bytes"]), None, documents)


def tar_problem(tar: np.ndarray, table: np.ndarray, dtype: np.dtype) -> str | None:
    """The first thing wrong with the members of `tar`, uint8 [bytes]; None if they are those of the block table."""
    position = 0
    for member in expected_members(table, dtype):
        if problem := _header_problem(tar[position : position + TAR_BLOCK].tobytes(), member.name, member.size):
            return problem
        if member.payload != position + TAR_BLOCK:
            return f"member {member.name!r} starts at {position + TAR_BLOCK}, in the index at {member.payload}"
        if problem := _array_problem(tar[member.payload : member.payload + NPY_HEADER].tobytes(), member):
            return problem
        end = member.payload + member.size
        position = -(-end // TAR_BLOCK) * TAR_BLOCK
        if tar[end:position].any():
            return f"bytes that are not 0 follow member {member.name!r}"
    return _end_problem(tar, position)


def _header_problem(header: bytes, name: str, size: int) -> str | None:
    if len(header) < TAR_BLOCK or not any(header):
        return f"it ends before member {name!r}"
    try:
        found = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        return f"the header of member {name!r} is damaged: {error}"
    what = f"member {_shown(found.name)}"
    if found.type != tarfile.REGTYPE:
        return f"{what} is {_KINDS.get(found.type, f'of type {found.type!r}')}, where the file {name!r} should be"
    if found.name != name:
        return f"{what} stands where {name!r} should be"
    if header[257:265] != tarfile.POSIX_MAGIC:
        return f"{what} has no POSIX ustar header"
    return None if found.size == size else f"{what} announces {found.size} bytes, in the index it has {size}"


def _array_problem(header: bytes, member: Member) -> str | None:
    """Compares bytes: numpy reads such a header with Python's own parser, which nothing hostile should reach."""
    if member.dtype is None:
        return None
    expected = io.BytesIO()
    description = {"descr": member.dtype.str, "fortran_order": False, "shape": (member.elements,)}
    np.lib.format.write_array_header_1_0(expected, description)
    if header == expected.getvalue():
        return None
    return f"member {member.name!r} does not begin as an .npy array [{member.elements}] of {member.dtype}"


def _end_problem(tar: np.ndarray, position: int) -> str | None:
    """What is wrong after the last member: two blocks of zeros, and zeros up to the next multiple of 10,240."""
    end = -(-(position + 2 * TAR_BLOCK) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
    rest = tar[position:end]
    if not rest.any():
        return None if len(tar) == end else f"it has {len(tar)} bytes where {end} end it, the end marker included"
    try:
        found = tarfile.TarInfo.frombuf(rest[:TAR_BLOCK].tobytes(), "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return "data follow its end marker or its last member"
    return f"member {_shown(found.name)} ({_KINDS.get(found.type, 'a file')}) is not in the index"


def _shown(name: str) -> str:
    return ascii(name if len(name) < 100 else name[:97] + "...")
