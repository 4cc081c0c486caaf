"""Read compressed files. A truncated file is an error; the streams of zstandard and fsspec would just end."""

import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import zstandard

DAMAGE = (EOFError, zlib.error, zstandard.ZstdError)
# Decompressors, and the bytes of one step: hostile bytes expand 1,000-fold in gzip and 32,000-fold in zstd.
_FRAMES: dict[str, tuple[Callable[[], Any], int]] = {
    ".gz": (lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), 1 << 16),
    ".zst": (lambda: zstandard.ZstdDecompressor().decompressobj(), 1 << 12),
}


def decompressed_chunks(file: BinaryIO, compression: str) -> Iterator[bytes]:
    """The content of a `.gz` or `.zst` file. Raises an error of DAMAGE if the stream is truncated or damaged."""
    new_frame, piece_bytes = _FRAMES[compression]
    frame = new_frame()
    inside = False
    while data := file.read(piece_bytes):
        while data:
            yield frame.decompress(data)
            inside, data = not frame.eof, frame.unused_data
            if frame.eof:
                frame = new_frame()
                data = data.lstrip(b"\0")  # gzip files may be padded
    if inside:
        raise EOFError("it ends within compressed data")


def decompressed(data: bytes, name: str) -> bytes:
    """The content of a file called `name`, decompressed for .gz and .zst, else unchanged. Raises DAMAGE."""
    compression = next((suffix for suffix in _FRAMES if name.endswith(suffix)), None)
    return b"".join(decompressed_chunks(io.BytesIO(data), compression)) if compression else data
