"""Documents from text files, streamed with bounded memory; what cannot be read is reported, not raised.

- `.jsonl`: one JSON object a line, the document in its text field;
- `.txt`: documents separated by blank lines, as in the text files of BERT's pretraining code;
- either followed by `.gz` or `.zst`.
"""

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from glob import glob, has_magic
from pathlib import Path
from typing import BinaryIO, NamedTuple

import orjson
import zstandard

from data_prep.errors import UserError

MAX_LINE_BYTES = 256 << 20
_KINDS = (".jsonl", ".txt")
_COMPRESSIONS = ("", ".gz", ".zst")
_SUFFIXES = tuple(kind + compression for kind in _KINDS for compression in _COMPRESSIONS)
_CHUNK_BYTES = 1 << 20
_ZSTD_CHUNK_BYTES = 1 << 14  # of compressed input, which can expand a thousandfold
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)


class Row(NamedTuple):
    """A document and the line on which it starts (from 1); or, where `reason` is set, why there is none."""

    line: int
    text: str
    reason: str = ""


def find_inputs(values: Iterable[str | Path]) -> list[Path]:
    """Files for `--input` values, each a file, a folder (every readable file under it) or a glob pattern.

    Files of a folder or pattern are sorted; a file named twice is read once. Raises UserError for a value that names
    nothing and for a file of an unknown type.
    """
    paths: dict[Path, Path] = {}
    for value in map(str, values):
        if Path(value).is_dir():
            found = sorted(path for path in Path(value).rglob("*") if path.name.endswith(_SUFFIXES) and path.is_file())
        elif has_magic(value) and not Path(value).exists():
            found = sorted(Path(path) for path in glob(value, recursive=True) if Path(path).is_file())
        else:
            found = [Path(value)] if Path(value).is_file() else []
        if not found:
            raise UserError(f"No input file at {value}; give a file, a folder or a quoted glob pattern.")
        for path in found:
            if not path.name.endswith(_SUFFIXES):
                raise UserError(
                    f"{path} is of an unknown type; inputs end in {', '.join(_KINDS)}, or these with .gz, .zst."
                )
            paths.setdefault(path.resolve(), path)
    return list(paths.values())


def input_names(paths: list[Path]) -> list[str]:
    """The files' names relative to their deepest common folder: the same wherever that folder lies."""
    resolved = [path.resolve() for path in paths]
    common = os.path.commonpath([path.parent for path in resolved])
    return [path.relative_to(common).as_posix() for path in resolved]


class Source:
    """The rows of one file. While iterating, `bytes_read` is the position in the file, `text_bytes` in its text."""

    def __init__(self, path: Path, text_field: str = "text", max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.path, self.text_field, self.max_line_bytes = path, text_field, max_line_bytes
        self.bytes_read = self.text_bytes = 0

    def __iter__(self) -> Iterator[Row]:
        """Rows in file order. A damaged or truncated file ends with a row that says so."""
        self.bytes_read = self.text_bytes = 0
        name = self.path.name.removesuffix(".gz").removesuffix(".zst")
        read_rows = self._txt_rows if name.endswith(".txt") else self._jsonl_rows
        with open(self.path, "rb") as file:
            lines = _Lines(self._count(file), self.max_line_bytes)
            try:
                yield from read_rows(lines)
            except _DAMAGE as error:
                yield Row(lines.number + 1, "", f"the file is damaged or truncated from here on: {error}")

    def _count(self, file: BinaryIO) -> Iterator[bytes]:
        for chunk in _decompressed(file, self.path.suffix):
            self.bytes_read = file.tell()
            self.text_bytes += len(chunk)
            yield chunk

    def _jsonl_rows(self, lines: "_Lines") -> Iterator[Row]:
        for line in lines:
            if line is None:
                yield Row(lines.number, "", f"the line is longer than {self.max_line_bytes} bytes")
            elif line.strip():
                yield self._parse(lines.number, line)

    def _parse(self, number: int, line: bytes) -> Row:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            return Row(number, "", f"invalid JSON: {error.msg} at character {error.pos}")
        if not isinstance(value, dict):
            return Row(number, "", "the line is not a JSON object")
        text = value.get(self.text_field)
        if not isinstance(text, str):
            problem = "is not a string" if self.text_field in value else "is missing"
            return Row(number, "", f"field {self.text_field!r} {problem}")
        return Row(number, text)

    def _txt_rows(self, lines: "_Lines") -> Iterator[Row]:
        parts: list[bytes] = []
        first, size = 1, 0
        for line in lines:
            if line is not None and line.strip():
                if not size:
                    first = lines.number
                size += len(line) + 1
                if size <= self.max_line_bytes:
                    parts.append(line)
                else:
                    parts = []
            elif line is None:
                first, size, parts = first if size else lines.number, self.max_line_bytes + 1, []
            elif size:
                yield self._paragraph(first, parts)
                size, parts = 0, []
        if size:
            yield self._paragraph(first, parts)

    def _paragraph(self, first: int, parts: list[bytes]) -> Row:
        if not parts:
            return Row(first, "", f"the document is longer than {self.max_line_bytes} bytes; separate with blank lines")
        try:
            return Row(first, b"\n".join(parts).decode())
        except UnicodeDecodeError as error:
            return Row(first, "", f"invalid UTF-8: {error.reason} at byte {error.start} of the document")


class _Lines:
    """Lines of a byte stream without their ends; None for one longer than the limit. `number` counts from 1."""

    def __init__(self, chunks: Iterator[bytes], max_bytes: int) -> None:
        self.number = 0
        self._chunks, self._max_bytes = chunks, max_bytes

    def __iter__(self) -> Iterator[bytes | None]:
        head: list[bytes] = []
        size = 0
        for chunk in self._chunks:
            *ended, rest = chunk.split(b"\n")
            for line in ended:
                yield self._next(head, size, line)
                head, size = [], 0
            size += len(rest)
            if size <= self._max_bytes:
                head.append(rest)
            else:
                head = []
        if size:
            yield self._next(head, size, b"")

    def _next(self, head: list[bytes], size: int, tail: bytes) -> bytes | None:
        self.number += 1
        if size + len(tail) > self._max_bytes:
            return None
        line = b"".join([*head, tail]).removesuffix(b"\r")
        return line.removeprefix(b"\xef\xbb\xbf") if self.number == 1 else line


def _decompressed(file: BinaryIO, suffix: str) -> Iterator[bytes]:
    """Chunks of text; raises one of _DAMAGE where the compressed stream is cut or damaged."""
    if suffix == ".zst":
        yield from _zstd_chunks(file)
        return
    stream = gzip.GzipFile(fileobj=file) if suffix == ".gz" else file
    while chunk := stream.read1(_CHUNK_BYTES):  # type: ignore[union-attr]
        yield chunk


def _zstd_chunks(file: BinaryIO) -> Iterator[bytes]:
    # zstandard's stream reader ends silently at a truncated frame, so the frames are followed here.
    frame = zstandard.ZstdDecompressor().decompressobj()
    inside = False
    while data := file.read(_ZSTD_CHUNK_BYTES):
        while data:
            chunk = frame.decompress(data)
            inside, data = not frame.eof, frame.unused_data
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            if chunk:
                yield chunk
    if inside:
        raise EOFError("Compressed file ended before the end of its last zstd frame")
