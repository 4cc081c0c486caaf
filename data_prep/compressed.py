"""Whole compressed files. One that was cut off is an error, where the streams of zstandard and fsspec just end."""

import gzip
import zlib

import zstandard

DAMAGE = (EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile)


def decompressed(data: bytes, name: str) -> bytes:
    """The contents of a file called `name`: of .gz and .zst decompressed, of others as they are.

    Raises:
        DAMAGE: one of these, if they are damaged.
    """
    if name.endswith(".gz"):
        return gzip.decompress(data)
    if not name.endswith(".zst"):
        return data
    frames = []
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        frames.append(frame.decompress(data))
        if not frame.eof:
            raise EOFError("the file ends within a zstd frame")
        data = frame.unused_data
    return b"".join(frames)
