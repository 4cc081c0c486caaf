"""Read compressed files. A truncated file is an error; the streams of zstandard and fsspec would just end."""

import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import zstandard

# Decompressors, and the bytes of one step: hostile bytes expand 1,000-fold in gzip and 32,000-fold in zstd.
_FRAMES: dict[str, tuple[Callable[[], Any], int]] = {
    ".gz": (lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), 1 << 16),
    ".zst": (lambda: zstandard.ZstdDecompressor().decompressobj(), 1 << 12),
}


class DamagedStream(ValueError):
    """A compressed stream is truncated or damaged."""


def decompressed_chunks(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The content of a file called `name`, decompressed for .gz and .zst, else unchanged.

    Raises DamagedStream if a compressed stream is truncated or damaged.
    """
    compression = next((suffix for suffix in _FRAMES if name.endswith(suffix)), None)
    if compression is None:
        yield file.read()
        return
    new_frame, piece_bytes = _FRAMES[compression]
    frame = new_frame()
    inside = False
    while data := file.read(piece_bytes):
        while data:
            try:
                text = frame.decompress(data)
            except (zlib.error, zstandard.ZstdError) as error:
                raise DamagedStream(str(error)) from error
            yield text
            inside, data = not frame.eof, frame.unused_data
            if frame.eof:
                frame = new_frame()
                data = data.lstrip(b"\0")  # gzip files may be padded
    if inside:
        raise DamagedStream("it ends within compressed data")
