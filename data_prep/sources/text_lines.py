r"""Documents of .jsonl, .txt and .fasta files, whole or in byte ranges.

A range [first, last) of an uncompressed file is the text between two boundaries. Boundary x is the start of the first
line that starts at or after x. If separator lines end documents, it is the end of the first separator line that starts
at or after x; in a .fasta file, the start of the first header line. Positions 0 and the file's size are their own
boundaries. Neighbouring ranges share a boundary, so no text is repeated or lost, and each range can be read separately.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from data_prep.common.errors import UnusableInput
from data_prep.common.reading import open_regular
from data_prep.common.urls import shown
from data_prep.sources.input_types import InputRange, Options, SourceRow, compression_of, getter, too_long
from data_prep.sources.long_texts import cut_bytes
from data_prep.storage import MAGIC, DamagedStream, decompressed_chunks


class _Piece(bytes):
    """A piece of a line that is longer than the limit. The next piece follows, and the last one is of type bytes."""


Batches = Iterator[list[Any]]
"""Lines without their line feeds, as bytes. Of a line that is longer than the limit, pieces, or in JSON its length."""

_BOM = b"\xef\xbb\xbf"
_CHUNK_BYTES = 1 << 20
_SURROGATE, _NO_NUMBER = re.compile("[\ud800-\udfff]"), re.compile(rb"\b(NaN|Infinity)\b")
_ONE_A_LINE = "Each line must be one object: jq -c '(arrays | .[]), objects' FILE > NEW.jsonl"
_BINARY = "the file is binary, not UTF-8 text: give a text file, or take it out of the input"


def is_one_unit(location: str, kind: str, options: Options) -> bool:
    """Whether a .jsonl, .txt or .fasta file can only be read as a whole."""
    return bool(compression_of(location)) or (kind == "txt" and options.separator == "file")


def read_text_rows(path: Path, part: InputRange) -> Iterator[SourceRow]:
    """Rows of bytes [first, last), or of units [0, 1) if the file is one unit."""
    location, kind, separator = part.source.location, part.source.kind, part.options.separator
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if is_one_unit(location, kind, part.options):
            start, end = 0, size if part.last > part.first else 0
        else:
            start, end = _boundaries(file, part, _separator_test(kind, separator))
        compression = compression_of(location) if end else ""
        chunks = _text_chunks(file, compression, part) if compression else _plain_chunks(file, start, end, part)
        batches = _line_batches(chunks, part.max_bytes, start == 0, _length if kind == "jsonl" else _pieces)
        txt_rows = _line_rows if separator == "line" else _txt_rows
        rows = {"jsonl": _jsonl_rows, "fasta": _fasta_rows}.get(kind, txt_rows)
        try:
            yield from rows(batches, part)
        except DamagedStream as error:
            yield SourceRow(part.lines + 1, "", f"the file cannot be read further: {error}", bytes=end - error.at)
        part.bytes_read = end - start


def _plain_chunks(file: BinaryIO, start: int, end: int, part: InputRange) -> Iterator[bytes]:
    """The bytes [start, end) of an uncompressed file."""
    file.seek(start)
    while start < end and (chunk := file.read(min(_CHUNK_BYTES, end - start))):
        start += len(chunk)
        part.bytes_read += len(chunk)
        part.text_bytes += len(chunk)
        yield chunk


def _text_chunks(file: BinaryIO, compression: str, part: InputRange) -> Iterator[bytes]:
    """The text of a .gz or .zst file. Raises DamagedStream at the end of a truncated or damaged stream."""
    for chunk in decompressed_chunks(file, compression):
        part.bytes_read = file.tell()
        part.text_bytes += len(chunk)
        for start in range(0, len(chunk), _CHUNK_BYTES):
            yield chunk[start : start + _CHUNK_BYTES]


def _length(line: bytes, max_bytes: int) -> list[Any]:
    return [line if len(line) <= max_bytes else len(line)]


def _pieces(line: bytes, max_bytes: int) -> list[Any]:
    *pieces, last = cut_bytes(line, max_bytes)
    return [*map(_Piece, pieces), last]


def _line_batches(
    chunks: Iterator[bytes], max_bytes: int, at_start: bool, shorten: Callable[[bytes, int], list[Any]]
) -> Batches:
    """A list of lines for each chunk that ends any. At the start of a file, a byte order mark is removed."""
    head: list[bytes] = []  # the beginning of a line that is not complete
    size = 0
    mark = _BOM if at_start else b""
    for chunk in chunks:
        whole = chunk.split(b"\n")
        rest = whole.pop()
        if whole:
            lines: list[Any] = [*whole]
            head.append(whole[0])
            size += len(whole[0])
            lines[0] = b"".join(head).removeprefix(mark) if shorten is _pieces or size <= max_bytes else size
            if max(size, len(chunk)) > max_bytes:
                lines = [part for line in lines for part in ([line] if type(line) is int else shorten(line, max_bytes))]
            yield lines
            head, size, mark = [], 0, b""
        size += len(rest)
        head.append(rest)
        if size > max_bytes:
            if shorten is _pieces:
                *pieces, rest = _pieces(b"".join(head).removeprefix(mark), max_bytes)
                head, size, mark = [rest], len(rest), b""
                yield pieces
            else:
                head = []
    if size:
        yield [b"".join(head).removeprefix(mark) if size <= max_bytes else size]


def _jsonl_rows(batches: Batches, part: InputRange) -> Iterator[SourceRow]:
    options = part.options
    get_text, get_id, get_other = map(getter, (options.text_field, options.id_field, options.other_field))
    id_types = (str, int) if options.id_field else (type(None),)
    other_type = str if options.other_field else type(None)
    number = 0
    new = tuple.__new__  # twice as fast as SourceRow(...), which matters for short documents
    for lines in batches:
        for line in lines:
            number += 1
            try:
                value = orjson.loads(line)
                text, id, other = get_text(value), get_id(value), get_other(value)
            except (LookupError, TypeError):
                text = id = other = None
            except ValueError:
                text, id, other = _lenient(line, get_text, get_id, get_other)
            if type(text) is str and type(id) in id_types and type(other) is other_type:
                yield new(SourceRow, (number, text, "", id, other, 0))
            elif isinstance(line, int):
                yield SourceRow(number, "", too_long("line", part.max_bytes), bytes=part.stored(line + 1))
            elif line.strip():
                yield SourceRow(number, "", _why_not(number, line, options), bytes=part.stored(len(line) + 1))
        part.lines = number


def _parsed(line: bytes | int) -> Any:
    """The value of a JSON line. NaN and Infinity, which others write, are allowed. Raises orjson.JSONDecodeError."""
    try:
        return orjson.loads(line)  # type: ignore[arg-type]
    except orjson.JSONDecodeError as error:
        if not isinstance(line, int) and _NO_NUMBER.search(line) and "ecursion" not in str(error):
            with contextlib.suppress(ValueError, RecursionError):
                # Without an encoding, json would guess one. An integer beyond 64 bits is a float, as for orjson.
                return json.loads(line.decode(), parse_int=orjson.loads)
        raise


def _lenient(line: bytes | int, *getters: Callable[[Any], Any]) -> list[Any]:
    """The values of a line that strict JSON forbids (`_parsed`); None for each if it has not all of them."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        value = _parsed(line)
        fields = [get(value) for get in getters]
        if not any(isinstance(field, str) and _SURROGATE.search(field) for field in fields):
            return fields
    return [None] * len(getters)


def _why_not(number: int, line: bytes, options: Options) -> str:
    """Why a line is no document, with advice."""
    try:
        value = _parsed(line)
    except orjson.JSONDecodeError as error:
        return _why_no_json(number, line, error)
    if not isinstance(value, dict):
        return f"the line is not a JSON object, but {_json_kind(value)}. {_ONE_A_LINE}"
    for field in filter(None, (options.text_field, options.other_field)):
        try:
            if not isinstance(content := getter(field)(value), str):
                inner = f"; to read a key of it, name {field}.KEY" if isinstance(content, dict) else ""
                return f"field {field!r} is not a string, but {_json_kind(content)}{inner}"
        except (LookupError, TypeError):
            return f"field {field!r} is missing"
    try:
        getter(options.id_field)(value)
    except (LookupError, TypeError):
        return f"id field {options.id_field!r} is missing"
    id_problem = f"id field {options.id_field!r} is neither a string nor an integer"
    return id_problem if options.id_field else "a character is cut in half"


def _why_no_json(number: int, line: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        text = line.decode().strip()
    except UnicodeDecodeError as wrong:
        return _not_utf8(number, line, wrong.start)
    if "\0" in text:  # JSON writes it as \\u0000
        return _BINARY
    advice = ""
    if text[0] in "[]}" or text[-1] in ",{[" or "unexpected content" in error.msg:
        advice = f". {_ONE_A_LINE}"
    elif "surrogate" in error.msg:
        advice = ": a character is cut in half"
    return f"invalid JSON: {error.msg} at character {error.pos}{advice}"


def _json_kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _line_rows(batches: Batches, part: InputRange) -> Iterator[SourceRow]:
    number, inside = 0, False
    for lines in batches:
        for line in lines:
            number += not inside
            if line and not line.isspace():
                yield _document(number, line, part)
            if inside := type(line) is _Piece:
                part.count_cut(number)
        part.lines = number


def _txt_rows(batches: Batches, part: InputRange) -> Iterator[SourceRow]:
    """A row for each document. One over the limit is cut at its last line end before that, or as its line is cut."""
    separates, max_bytes = _separator_test("txt", part.options.separator) or (lambda line: False), part.max_bytes
    parts: list[bytes] = []
    size, document, start, number = 0, 1, 1, 0  # size: of the parts so far, with line feeds; start: of their first line
    inside = False
    for lines in batches:
        for line in lines:
            number += not inside
            is_piece = type(line) is _Piece
            if not (inside or is_piece) and separates(line):
                if size and (row := _joined(start, parts, part)):
                    yield row
                parts, size, document, start = [], 0, number + 1, number + 1
            else:
                if size + len(line) > max_bytes:
                    part.count_cut(document)
                    if row := _joined(start, parts, part):
                        yield row
                    parts, size, start = [], 0, number
                parts.append(line)
                size += len(line) + 1
            inside = is_piece
        part.lines = number
    if size and (row := _joined(start, parts, part)):
        yield row


def _joined(start: int, parts: list[bytes], part: InputRange) -> SourceRow | None:
    data = b"\n".join(parts)
    return _document(start, data, part) if data and not data.isspace() else None


def _document(line: int, data: bytes, part: InputRange) -> SourceRow:
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
    try:
        return SourceRow(line, data.decode())
    except UnicodeDecodeError as error:
        return SourceRow(line, "", _not_utf8(line, data, error.start), bytes=part.stored(len(data) + 1))


def _not_utf8(line: int, data: bytes, offset: int) -> str:
    """Why bytes are not UTF-8 text, with advice."""
    if line == 1 and (name := next((name for start, name in MAGIC.items() if data.startswith(start)), None)):
        return f"the file is compressed: add {name} to its name"
    if line == 1 and data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "the file is in UTF-16. Convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"
    if b"\0" in data:
        return _BINARY
    return f"invalid UTF-8 at byte {offset} of the document: save the file as UTF-8, as with iconv -f LATIN1 -t UTF-8"


def _fasta_rows(batches: Batches, part: InputRange) -> Iterator[SourceRow]:
    """A row for each record: its sequence lines joined, without spaces. Its line is the header's."""
    header, parts = b"", list[bytes]()
    size = start = number = 0  # size: of the sequence so far; start: the line of the record's header
    stored = 0  # bytes of the record's lines
    inside = False
    for lines in batches:
        for line in lines:
            number += not inside
            is_piece = type(line) is _Piece
            if line.startswith(b">") and not inside:
                if start:
                    yield _record(start, header, b"".join(parts), stored, part)
                header, parts, size, start, stored = b"" if is_piece else line, [], 0, number, 0
            elif residues := b"".join(line.split()):
                parts.append(residues)
                size, start = size + len(residues), start or number
            stored += len(line) + (not is_piece)
            if size > part.max_bytes:
                *pieces, rest = cut_bytes(b"".join(parts), part.max_bytes)
                part.count_cut(start)
                for piece in pieces:
                    yield _record(start, header, piece, stored, part)
                    stored = 0
                parts, size = [rest], len(rest)
            inside = is_piece
        part.lines = number
    if start:
        yield _record(start, header, b"".join(parts), stored, part)


def _record(start: int, header: bytes, sequence: bytes, stored: int, part: InputRange) -> SourceRow:
    reason = name = ""
    if not header:
        reason = "no header, or one that is too long: the first line of a FASTA file begins with >"
    else:
        try:
            name = header.decode()[1:].strip()
        except UnicodeDecodeError as error:
            reason = _not_utf8(start, header, error.start)
    if reason:
        return SourceRow(start, "", reason, bytes=part.stored(stored))
    return _document(start, sequence, part)._replace(id=name if part.options.id_field else None)


def _separator_test(kind: str, separator: str) -> Callable[[bytes], bool] | None:
    """A test whether a line ends a document, or in a .fasta file begins one; None if all lines do, or none."""
    if kind == "fasta":
        return lambda line: line.startswith(b">")
    if kind != "txt" or separator in ("line", "file"):
        return None
    if separator == "blank":
        return lambda line: not line or line.isspace()
    return frozenset((separator.encode(), separator.encode() + b"\r")).__contains__


def _boundaries(file: BinaryIO, part: InputRange, separates: Callable[[bytes], bool] | None) -> tuple[int, int]:
    size = os.fstat(file.fileno()).st_size
    if not 0 <= part.first <= part.last <= size:
        raise UnusableInput(
            f"{shown(part.source.location)} changed while it was read (it has {size} bytes now); run the command again."
        )
    start = _boundary(file, part.first, separates, part, part.last)
    if part.first == part.last or start is None:
        return 0, 0
    end = _boundary(file, part.last, separates, part, size)
    return start, size if end is None else end


def _boundary(
    file: BinaryIO, at: int, separates: Callable[[bytes], bool] | None, part: InputRange, limit: int
) -> int | None:
    """The boundary of `at`; None if it has the same boundary as `limit`."""
    if at == 0:
        return 0
    file.seek(at - 1)
    start = at - 1 + _finish_line(file)
    while start < limit:
        if separates is None:
            return start
        line = file.readline(part.max_bytes + 2)
        end = start + len(line)
        text = line.removesuffix(b"\n")
        if len(text) > part.max_bytes:
            end += 0 if line.endswith(b"\n") else _finish_line(file)
        elif separates(text):
            return start if part.source.kind == "fasta" else end
        start = end
    return None


def _finish_line(file: BinaryIO) -> int:
    """Move to the start of the next line; return the number of bytes skipped."""
    skipped = 0
    while data := file.readline(_CHUNK_BYTES):
        skipped += len(data)
        if data.endswith(b"\n"):
            break
    return skipped
