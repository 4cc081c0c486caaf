"""What a plan needs to know of an input without reading it: size, identity, units of work."""

import os
from dataclasses import dataclass
from pathlib import Path

import xxhash

from data_prep.cache import Cache
from data_prep.errors import UserError
from data_prep.reading import open_regular
from data_prep.sources.input_types import Options, SourceInput
from data_prep.sources.text_lines import is_one_unit
from data_prep.urls import Remote, identity, is_url, open_remote, remote_errors, shown

_PIECES, _PIECE_BYTES = 64, 16 << 10


@dataclass(frozen=True)
class Examined:
    """bytes: stored size. digest: the content's identity. unit_bytes: of each unit; None where a unit is a byte."""

    bytes: int
    digest: str
    unit_bytes: tuple[int, ...] | None


def examine(found: SourceInput, cache: Cache, options: Options | None = None) -> Examined:
    """Size, digest and units of an input; big files are sampled, not read.

    Units: bytes of uncompressed text files; row groups of parquet and record batches of arrow files, in bytes of
    their text column; chunks of rows or, streaming, shards of a data set of the Hub; else the whole file. Raises
    UserError for what cannot be read at all: a damaged footer, no column of the text field's name.
    """
    options = options or Options()
    for option, field in (("--id-field", options.id_field), ("--wrong-field", options.wrong_field)):
        if found.kind == "txt" and field:
            raise UserError(f"{shown(found.location)} has no fields, and so no {field!r}; leave out {option}.")
    if found.kind == "hub":
        from data_prep.sources.hub import examine_hub

        return Examined(*examine_hub(found.location, options))
    if is_url(found.location):
        return _examine_remote(found, cache, options)
    path = Path(found.location)
    size, digest = _content(path)
    return Examined(size, digest, _units(found, path, size, options))


def _content(path: Path) -> tuple[int, str]:
    """Size, and the hash of size and content: all of a small file, evenly spread pieces of a big one."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            digest = xxhash.xxh3_128(size.to_bytes(8, "little"))
            if size <= _PIECES * _PIECE_BYTES:
                digest.update(file.read())
            else:
                for piece in range(_PIECES):
                    file.seek(piece * (size - _PIECE_BYTES) // (_PIECES - 1))
                    digest.update(file.read(_PIECE_BYTES))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    return size, digest.hexdigest()


def _units(found: SourceInput, path: Path, size: int, options: Options) -> tuple[int, ...] | None:
    if found.kind in ("jsonl", "txt"):
        return (size,) if is_one_unit(found.location, found.kind, options) else None
    from data_prep.sources.arrow_tables import arrow_units, parquet_units

    return (parquet_units if found.kind == "parquet" else arrow_units)(str(path), options, found.location)


def _examine_remote(found: SourceInput, cache: Cache, options: Options) -> Examined:
    remote = open_remote(found.location)
    with remote_errors(found.location):
        known = identity(remote)
    if known.size is None or not known.version:  # so only the content tells
        with cache.local(found.location) as path:
            size, digest = _content(path)
            return Examined(size, digest, _remote_units(found, remote, size, cache, options))
    digest = xxhash.xxh3_128_hexdigest(f"{known.size}\n{known.version}".encode())
    return Examined(known.size, digest, _remote_units(found, remote, known.size, cache, options))


def _remote_units(
    found: SourceInput, remote: Remote, size: int, cache: Cache, options: Options
) -> tuple[int, ...] | None:
    if found.kind == "arrow":  # has no table of contents, and a download of everything is too much for a plan
        return (size,)
    if found.kind != "parquet":
        return _units(found, Path(), size, options)
    from data_prep.sources.arrow_tables import parquet_units

    try:
        with remote.fs.open(remote.path, "rb") as file:  # reads the footer alone, where the file system can seek
            return parquet_units(file, options, found.location)
    except UserError:
        raise
    except Exception:
        with cache.local(found.location) as path:
            return parquet_units(str(path), options, found.location)
