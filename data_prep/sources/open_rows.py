"""Examine an input without reading all of it, and read the documents of a range of its units."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from data_prep.common.errors import UserError
from data_prep.common.reading import open_regular
from data_prep.common.urls import is_url, open_remote, remote_errors, remote_version, shown
from data_prep.sources.aligned_files import read_aligned, sides_of
from data_prep.sources.input_types import HEADER, InputRange, Options, SourceInput, SourceRow
from data_prep.sources.text_lines import is_one_unit, read_text_rows
from data_prep.storage import Cache

_SAMPLES, _SAMPLE_BYTES = 64, 16 << 10


@dataclass(frozen=True)
class Examined:
    """bytes: stored size. digest: identifies the content. unit_bytes: size of each unit, None if a unit is a byte."""

    bytes: int
    digest: str
    unit_bytes: tuple[int, ...] | None


def examine(source: SourceInput, cache: Cache, options: Options | None = None) -> Examined:
    """Size, digest and units of an input. Large files are sampled.

    Units are: bytes of uncompressed text files; row groups of parquet files, with the bytes of their text column;
    blocks of rows of a data set of the Hub; else the whole file. Raises UserError for an input that cannot be read,
    such as a damaged footer or a missing text column.
    """
    options = options or Options()
    for name in ("id_field", "wrong_field", "target_field"):
        if source.kind in ("txt", "pair") and (field := getattr(options, name)):
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{shown(source.location)} has no fields, and so no {field!r}; leave out {option}.")
        if source.kind == "fasta" and (field := getattr(options, name)) and (name, field) != ("id_field", HEADER):
            raise UserError(
                f"{shown(source.location)} has no field {field!r}. A FASTA record has a sequence and a header, which "
                "--id-field header keeps."
            )
    if source.kind == "hub":
        from data_prep.sources.hub import examine_hub

        return Examined(*examine_hub(source.location, options))
    if source.kind == "pair":
        sides = [examine(side, cache, options) for side in sides_of(source)]
        size = sum(side.bytes for side in sides)
        return Examined(size, xxhash.xxh3_128_hexdigest("".join(side.digest for side in sides).encode()), (size,))
    if is_url(source.location):
        return _examine_remote(source, cache, options)
    path = Path(source.location)
    size, digest = _content(path)
    return Examined(size, digest, _units(source, str(path), size, options))


def examine_unchanged(source: SourceInput, digest: str, cache: Cache, options: Options) -> Examined:
    """As `examine`; also raises UserError if the input has another digest now."""
    seen = examine(source, cache, options)
    if seen.digest != digest:
        raise UserError(f"{shown(source.location)} has changed since it was planned; run the same command again.")
    return seen


def hub_records(location: str, columns: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a data set of the Hub, each with its place. Images and audio are not decoded.

    location: of an input that `find_inputs` found. columns: to read; all if the data set has none of them.
    Raises UserError for rows that cannot be read.
    """
    from data_prep.sources.hub import read_records

    for number, record in enumerate(read_records(location, columns), 1):
        yield f"{location}, row {number}", record


def _content(path: Path) -> tuple[int, str]:
    """The size, and a hash of the size and the content. Of a large file, evenly spread samples are hashed."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            digest = xxhash.xxh3_128(size.to_bytes(8, "little"))
            if size <= _SAMPLES * _SAMPLE_BYTES:
                digest.update(file.read())
            else:
                for sample in range(_SAMPLES):
                    file.seek(sample * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                    digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    return size, digest.hexdigest()


def _units(source: SourceInput, file: Any, size: int, options: Options) -> tuple[int, ...] | None:
    """The units of a path or, for parquet, of an open file."""
    if source.kind != "parquet":
        return (size,) if is_one_unit(source.location, source.kind, options) else None
    from data_prep.sources.parquet_tables import parquet_units

    return parquet_units(file, options, source.location)


def _examine_remote(source: SourceInput, cache: Cache, options: Options) -> Examined:
    remote = open_remote(source.location)
    with remote_errors(source.location):
        size, version = remote_version(remote)
    if size is None or not version:  # only the content identifies the file
        with cache.local(source.location) as path:
            size, digest = _content(path)
    else:
        digest = xxhash.xxh3_128_hexdigest(f"{size}\n{version}".encode())
    if source.kind != "parquet":
        return Examined(size, digest, _units(source, None, size, options))
    try:
        with remote.fs.open(remote.path, "rb") as file:  # reads only the footer if the file system can seek
            return Examined(size, digest, _units(source, file, size, options))
    except UserError:
        raise
    except Exception:
        with cache.local(source.location) as path:
            return Examined(size, digest, _units(source, str(path), size, options))


class RowReader(InputRange):
    """The rows of a range of an input, in order.

    A document of more than `max_bytes` of UTF-8 is cut into several rows with its id; a longer line of JSON, or text of
    a pair, becomes a row with a reason. At the end, `bytes_read` is the size of the range by `examine` (for the Hub: of
    the columns read) and `lines` its number of lines or table rows. Lines of rows are relative to the range. Raises
    UserError for an input that cannot be opened.
    """

    def __iter__(self) -> Iterator[SourceRow]:
        self.bytes_read = self.text_bytes = self.lines = self.cut_documents = self._last_cut = 0
        if self.source.kind == "hub":
            from data_prep.sources.hub import read_hub

            yield from read_hub(self)
            return
        if self.source.kind == "pair":
            yield from read_aligned(self)
            return
        with self.cache.local(self.source.location) as path:
            try:
                if self.source.kind == "parquet":
                    from data_prep.sources.parquet_tables import read_parquet

                    yield from read_parquet(path, self)
                else:
                    yield from read_text_rows(path, self)
            except OSError as error:
                reason = error.strerror or error
                raise UserError(f"{shown(self.source.location)} cannot be read: {reason}.") from error
