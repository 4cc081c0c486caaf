"""Bytes of text files: decompression, and lines, with bounded memory."""

from collections.abc import Iterator
from typing import BinaryIO

from data_prep.compressed import decompressed_chunks
from data_prep.sources.input_types import Counts

BOM = b"\xef\xbb\xbf"
_CHUNK_BYTES = 1 << 20


def plain_chunks(file: BinaryIO, start: int, end: int, counts: Counts) -> Iterator[bytes]:
    """The bytes [start, end) of an uncompressed file."""
    file.seek(start)
    while start < end and (chunk := file.read(min(_CHUNK_BYTES, end - start))):
        start += len(chunk)
        counts.bytes_read += len(chunk)
        counts.text_bytes += len(chunk)
        yield chunk


def text_chunks(file: BinaryIO, compression: str, counts: Counts) -> Iterator[bytes]:
    """All text of a .gz or .zst file; raises one of DAMAGE where the compressed stream is cut or damaged."""
    for chunk in decompressed_chunks(file, compression):
        counts.bytes_read = file.tell()
        for start in range(0, len(chunk), _CHUNK_BYTES):
            yield chunk[start : start + _CHUNK_BYTES]
        counts.text_bytes += len(chunk)


def line_batches(chunks: Iterator[bytes], max_bytes: int, at_start: bool) -> Iterator[list[bytes | None]]:
    r"""Lines without their \n, a list for each chunk that ends any; None for a line longer than `max_bytes`.

    A byte order mark is removed from the first line if the chunks are from the file's start.
    """
    batches = _batches(chunks, max_bytes)
    if at_start and (first := next(batches, None)) is not None:
        if first[0] is not None:
            first[0] = first[0].removeprefix(BOM)
        yield first
    yield from batches


def _batches(chunks: Iterator[bytes], max_bytes: int) -> Iterator[list[bytes | None]]:
    head: list[bytes] = []  # of the line that the chunks so far have begun
    size = 0
    for chunk in chunks:
        lines: list[bytes | None] = [*chunk.split(b"\n")]
        rest = lines.pop() or b""
        if lines:
            head.append(lines[0] or b"")
            size += len(head[-1])
            lines[0] = b"".join(head) if size <= max_bytes else None
            if len(chunk) > max_bytes:
                lines = [None if line is None or len(line) > max_bytes else line for line in lines]
            yield lines
            head, size = [], 0
        size += len(rest)
        if size <= max_bytes:
            head.append(rest)
        else:
            head = []
    if size:
        yield [b"".join(head) if size <= max_bytes else None]
