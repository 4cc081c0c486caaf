"""Compressed files. One that was cut off is an error, where the streams of zstandard and fsspec just end."""

import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import zstandard

DAMAGE = (EOFError, zlib.error, zstandard.ZstdError)
# Decompressors, and how much they are fed at a time: hostile bytes expand 1,000-fold in gzip and 32,000-fold in zstd.
_FRAMES: dict[str, tuple[Callable[[], Any], int]] = {
    ".gz": (lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), 1 << 16),
    ".zst": (lambda: zstandard.ZstdDecompressor().decompressobj(), 1 << 12),
}


def decompressed_chunks(file: BinaryIO, compression: str) -> Iterator[bytes]:
    """The contents of a `.gz` or `.zst` file; raises one of DAMAGE where the compressed stream is cut or damaged."""
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
    """The contents of a file called `name`: of .gz and .zst decompressed, of others as they are; raises DAMAGE."""
    compression = next((suffix for suffix in _FRAMES if name.endswith(suffix)), None)
    return b"".join(decompressed_chunks(io.BytesIO(data), compression)) if compression else data
