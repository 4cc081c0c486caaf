"""Read compressed files. A truncated file is an error; the streams of zstandard and fsspec would just end."""

import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import zstandard

_MAX_WINDOW = 1 << 31  # bytes; `zstd --long=31` is the largest that zstd itself writes
# Decompressors, and the bytes of one step: hostile bytes expand 1,000-fold in gzip and 32,000-fold in zstd.
_FRAMES: dict[str, tuple[Callable[[], Any], int]] = {
    ".gz": (lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), 1 << 16),
    ".zst": (lambda: zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj(), 1 << 12),
}
MAGIC = {  # the first bytes of compressed files
    b"\x1f\x8b": ".gz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"\xfd7zXZ": ".xz",
    b"BZh": ".bz2",
    b"PK\x03\x04": ".zip",
}


class DamagedStream(ValueError):
    """A compressed stream is truncated, damaged or of another format.

    at: the bytes of the file up to there are read; what follows cannot be read, or may be incomplete.
    """

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.at = at


def decompressed_chunks(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The content of a file called `name`, decompressed for .gz and .zst, else unchanged.

    Raises DamagedStream if a compressed stream is truncated or damaged, or other bytes follow it.
    """
    compression = next((suffix for suffix in _FRAMES if name.endswith(suffix)), None)
    if compression is None:
        yield file.read()
        return
    new_frame, piece_bytes = _FRAMES[compression]
    frame, first, inside = new_frame(), b"", False
    read = start = 0  # bytes read, and the offset of the current frame
    while data := file.read(piece_bytes):
        read += len(data)
        while data:
            first = (first + data[:6])[:6]
            try:
                text = frame.decompress(data)
            except (zlib.error, zstandard.ZstdError) as error:
                reason = _not_a_frame(compression, first, start) or _damage(str(error))
                raise DamagedStream(reason, read - len(data) if inside else start) from error
            yield text
            inside, data = not frame.eof, frame.unused_data
            if frame.eof:
                frame, first = new_frame(), b""
                data = data.lstrip(b"\0")  # gzip files may be padded
                start = read - len(data)
    if inside:
        raise DamagedStream("it is damaged or truncated: it ends within compressed data. Copy it again", start)


def _not_a_frame(compression: str, first: bytes, start: int) -> str:
    """Why bytes at an offset are not of this compression; empty if they begin like it. `first`: up to 6 of them."""
    magic = next(magic for magic, suffix in MAGIC.items() if suffix == compression)
    if first[: len(magic)] == magic[: len(first)]:
        return ""
    if start:
        return f"the bytes from {start} on, after the compressed data, are not compressed. Remove them"
    if other := next((suffix for magic, suffix in MAGIC.items() if first.startswith(magic)), None):
        return f"it is no {compression} file, but compressed as {other}. Correct its name, or convert it"
    return f"it is not compressed, although its name ends in {compression}. Take {compression} off its name"


def _damage(error: str) -> str:
    if "ictionary" in error:
        return "it was compressed with a dictionary. Decompress it with zstd -d -D DICTIONARY"
    if "too much memory" in error:
        return "its window is larger than 2 GiB, the limit. Compress it again, without --long"
    return f"it is damaged or truncated from here on: {error}. Copy it again"
