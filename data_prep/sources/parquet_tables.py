"""Documents of .parquet files, and of other Arrow tables as record batches."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_prep.common.errors import UnusableInput, first_line
from data_prep.common.reading import open_regular
from data_prep.common.urls import shown
from data_prep.sources.input_types import InputRange, Options, SourceRow, too_long
from data_prep.sources.long_texts import cut_text

_BATCH_BYTES, _BATCH_ROWS = 8 << 20, 1024
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)  # raised by pyarrow for damaged bytes


def check_schema(schema: pa.Schema, options: Options, location: str) -> None:
    """Raise UserError unless the fields of texts hold strings, and the id field strings or integers."""
    for field in _fields(options):
        kind = _field_type(schema, field)
        if kind is None:
            raise UnusableInput(
                f"{shown(location)} has no column {field!r}; its columns are {', '.join(schema.names)}. Name one with "
                f"{'--text-field' if field == options.text_field else 'the option'}."
            )
        value = _stored_type(kind)
        is_id = field == options.id_field != options.text_field
        if not _is_text(value) and not (is_id and pa.types.is_integer(value)):
            wanted = "strings or integers" if is_id else "strings"
            advice = "choose another column"
            parts = value if pa.types.is_struct(value) else ()
            if inner := [part.name for part in parts if _is_text(_stored_type(part.type))]:
                advice = f"choose one of its fields, such as {field}.{inner[0]}"
            raise UnusableInput(f"The column {field!r} of {shown(location)} holds {kind}, not {wanted}; {advice}.")


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """The type without an extension and a dictionary."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    """Strings, and bytes, which older programs write for strings."""
    return str(kind).startswith(("string", "large_string", "binary", "large_binary", "fixed_size_binary"))


def column_names(schema: pa.Schema, options: Options) -> list[str]:
    """The top-level columns that hold the texts and the id."""
    tops = [field if field in schema.names else field.partition(".")[0] for field in _fields(options)]
    return list(dict.fromkeys(tops))


def _fields(options: Options) -> list[str]:
    return [field for field in (options.text_field, options.id_field, options.other_field) if field]


def _field_type(schema: pa.Schema, field: str) -> pa.DataType | None:
    if field in schema.names:
        return schema.types[schema.names.index(field)]
    top, *rest = field.split(".")
    kind = schema.types[schema.names.index(top)] if top in schema.names else None
    for name in rest:
        index = kind.get_field_index(name) if kind is not None and pa.types.is_struct(kind) else -1
        kind = kind.field(index).type if kind is not None and index >= 0 else None
    return kind


def _column(batch: pa.RecordBatch, field: str) -> pa.Array:
    """The array of a field. Its buffers have the right sizes; their content is not validated."""
    names = batch.schema.names
    top, *rest = [field] if field in names else field.split(".")
    column = batch.column(names.index(top))
    column.validate()
    return pc.struct_field(column, rest) if rest else column


def batch_rows(batch: pa.RecordBatch, part: InputRange, row_bytes: int) -> Iterator[SourceRow]:
    """The rows of a batch, or one row with a reason if the batch is damaged. Adds its rows to `part.lines`.

    row_bytes: the mean size of a row.
    """
    options, line = part.options, part.lines
    part.lines += batch.num_rows
    try:
        texts, reasons = _strings(_column(batch, options.text_field), part)
        others, ids, bad, no_id = list[str | None](), list[Any](), dict[int, str](), dict[int, str]()
        if options.other_field:
            others, bad = _strings(_column(batch, options.other_field), part)
        if field := options.id_field:
            _, ids, no_id = _decoded(_column(batch, field), f"id field {field!r}")
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = f"the {batch.num_rows} table rows from here on are damaged: {first_line(error)}"
        yield SourceRow(line + 1, "", reason, bytes=batch.num_rows * row_bytes)
        return
    for index, text in enumerate(texts):
        line += 1
        id = ids[index] if ids else None
        size = max(row_bytes, len(text or ""))
        if text is None and index not in reasons:  # nothing is lost
            yield SourceRow(line, "", f"field {options.text_field!r} is null")
        elif text is None:
            yield SourceRow(line, "", reasons[index], bytes=size)
        elif id is None and ids:
            yield SourceRow(line, "", no_id.get(index) or f"id field {options.id_field!r} is null", bytes=size)
        elif others and others[index] is None:
            yield SourceRow(line, "", bad.get(index) or f"field {options.other_field!r} is null", bytes=size)
        elif others:
            yield SourceRow(line, text, "", id, others[index])
        else:
            pieces = cut_text(text, part.max_bytes)
            part.cut_documents += len(pieces) > 1
            for piece in pieces:
                yield SourceRow(line, piece, "", id)


def _strings(column: pa.Array, part: InputRange) -> tuple[list[str | None], dict[int, str]]:
    """The texts, and by index the reasons why a text that is not null is missing."""
    plain, texts, reasons = _decoded(column, "the document")
    lengths = pc.binary_length(plain)
    part.text_bytes += pc.sum(lengths).as_py() or 0
    if part.options.other_field and (pc.max(lengths).as_py() or 0) > part.max_bytes:  # a pair cannot be cut
        for index, length in enumerate(lengths.to_pylist()):
            if length is not None and length > part.max_bytes:
                texts[index], reasons[index] = None, too_long("document", part.max_bytes)
    return texts, reasons


def _decoded(column: pa.Array, name: str) -> tuple[pa.Array, list[Any], dict[int, str]]:
    """The column, its strings or integers, and by index the reasons why one that is not null is missing."""
    reasons: dict[int, str] = {}
    try:
        plain = column.storage if isinstance(column, pa.ExtensionArray) else column
        plain.validate(full=True)
        plain = plain.dictionary_decode() if pa.types.is_dictionary(plain.type) else plain
        if not pa.types.is_integer(plain.type) and str(plain.type) not in ("string", "large_string"):
            plain = plain.cast(pa.large_string())  # views, and bytes, whose UTF-8 this validates
        return plain, plain.to_pylist(), reasons
    except pa.ArrowInvalid:
        # Invalid UTF-8 or offsets. As bytes, only the offsets can be invalid, and they raise again.
        plain = _as_bytes(column)
        plain.validate(full=True)
        values = plain.to_pylist()
        for index, data in enumerate(values):
            try:
                values[index] = data if data is None else data.decode()
            except UnicodeDecodeError as error:
                values[index] = None
                reasons[index] = f"invalid UTF-8: {error.reason} at byte {error.start} of {name}"
        return plain, values, reasons


def _as_bytes(column: pa.Array) -> pa.Array:
    """The column as bytes, which may be invalid UTF-8."""
    column = column.storage if isinstance(column, pa.ExtensionArray) else column
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.view(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    return column.cast(pa.large_binary())


def parquet_units(source: Any, options: Options, location: str) -> tuple[int, ...]:
    """Uncompressed bytes of the text column in each row group of a path or file object. Raises UserError."""
    with _parquet(source, options, location) as file:
        return tuple(_group_bytes(file, group, options) for group in range(file.num_row_groups))


@contextlib.contextmanager
def _parquet(source: Any, options: Options, location: str) -> Iterator[pq.ParquetFile]:
    if isinstance(source, str):
        open_regular(Path(source)).close()
    try:
        # With a buffer size, pyarrow does not read whole column chunks.
        file = pq.ParquetFile(source, buffer_size=1 << 20, pre_buffer=False)
    except _DAMAGE as error:
        raise UnusableInput(f"{shown(location)} is not a whole parquet file: {first_line(error)}.") from error
    with file:
        check_schema(file.schema_arrow, options, location)
        yield file


def _group_bytes(file: pq.ParquetFile, group: int, options: Options) -> int:
    """Uncompressed bytes of the text column in a row group; of all columns if the text column is damaged.

    For damaged statistics, the metadata of a column ends the process (C++ terminate), but reading a row raises.
    """
    metadata = file.metadata.row_group(group)
    try:
        next(file.iter_batches(1, [group], [options.text_field], use_threads=False), None)
    except _DAMAGE as error:
        if getattr(error, "errno", None):  # the disk failed
            raise
        return int(metadata.total_byte_size)
    columns = [index for index in range(metadata.num_columns) if file.schema.column(index).path == options.text_field]
    return sum(metadata.column(index).total_uncompressed_size for index in columns)


def read_parquet(path: Path, part: InputRange) -> Iterator[SourceRow]:
    """The rows of a range of row groups. For a damaged group, there is a row with a reason; the next one follows."""
    columns = _fields(part.options)
    with _parquet(str(path), part.options, part.source.location) as file:
        for group in range(part.first, part.last):
            size, rows = _group_bytes(file, group, part.options), file.metadata.row_group(group).num_rows
            bytes_before, lines_before = part.bytes_read, part.lines
            batch_size = min(_BATCH_ROWS, max(1, _BATCH_BYTES * rows // max(size, 1)))
            try:
                for batch in file.iter_batches(batch_size, [group], columns, use_threads=False):
                    yield from batch_rows(batch, part, size // max(rows, 1))
                    part.bytes_read = bytes_before + size * (part.lines - lines_before) // rows
            except _DAMAGE as error:
                if getattr(error, "errno", None):  # the disk failed
                    raise
                reason = f"row group {group} is damaged from here on: {first_line(error)}. Write the file again"
                rest = size - size * (part.lines - lines_before) // max(rows, 1)
                yield SourceRow(part.lines + 1, "", reason, bytes=rest)
            part.bytes_read, part.lines = bytes_before + size, lines_before + rows
