"""Data sets of the Hub, or of local folders with the same layout, with `datasets`: `hub:OWNER/NAME?split=train&...`.

The units are blocks of rows. With `streaming=true` they are the shards of the data set (mostly its files), and nothing
is stored.
"""

import contextlib
import functools
import os
import re
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import pyarrow as pa
import xxhash

from data_prep.errors import UserError, first_line
from data_prep.sources.arrow_tables import batch_rows, check_schema, column_names
from data_prep.sources.input_types import HUB, Counts, Options, SourceRow
from data_prep.urls import identity, open_remote

_UNIT_ROWS, _BATCH_ROWS = 1000, 250
_COMMIT = re.compile(r"[0-9a-f]{40}")
_KEYS = ("name", "split", "revision", "streaming")


class _Hub(NamedTuple):
    """The parts of a `hub:` location."""

    path: str
    name: str | None = None
    split: str | None = None
    revision: str | None = None
    streaming: str = "false"

    @property
    def location(self) -> str:
        query = {key: value for key in _KEYS if (value := getattr(self, key)) and value != "false"}
        return f"{HUB}{self.path}?{urlencode(query)}"

    @property
    def load_options(self) -> dict[str, Any]:
        return {"path": self.path, "name": self.name, "revision": self.revision}


def _parse(location: str) -> _Hub:
    path, _, query = location.removeprefix(HUB).partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    if not path or given.keys() - set(_KEYS) or given.get("streaming", "true") not in ("true", "false"):
        raise UserError(f"{location} is not of the form hub:OWNER/NAME?{'=...&'.join(_KEYS)}=true.")
    return _Hub(path, **given)


@contextlib.contextmanager
def _errors(location: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # datasets, huggingface_hub, httpx, fsspec and pyarrow raise many types
        raise UserError(f"{location} cannot be loaded: {first_line(error)}") from error


def resolve(value: str) -> str:
    """The full location of a `hub:` value, with its split and the current commit as its revision.

    Raises UserError for an unknown data set, split or configuration, and if a choice is missing.
    """
    import datasets

    hub = _parse(value)
    if os.path.isdir(hub.path):
        hub = hub._replace(path=os.path.abspath(hub.path))
    with _errors(value):
        builder = datasets.load_dataset_builder(**hub.load_options)
        splits = datasets.get_dataset_split_names(hub.path, config_name=hub.name, revision=hub.revision)
    if (hub.split is None and len(splits) > 1) or hub.split not in (None, *splits):
        raise UserError(f"{value} has the splits {', '.join(splits)}; choose one with split=NAME.")
    if not os.path.isdir(hub.path) and _COMMIT.fullmatch(builder.hash or ""):
        hub = hub._replace(revision=builder.hash)
    return hub._replace(split=hub.split or splits[0]).location


@functools.lru_cache(maxsize=4)  # a worker reads many ranges of one data set
def _load(location: str) -> tuple[_Hub, Any]:
    """The parsed location, and a datasets.Dataset or, for streaming, an IterableDataset."""
    import datasets

    hub = _parse(location)
    with _errors(location):
        return hub, datasets.load_dataset(**hub.load_options, split=hub.split, streaming=hub.streaming == "true")


def _schema(location: str, data: Any) -> pa.Schema:
    with _errors(location):
        if data.features is not None:
            return data.features.arrow_schema
        return next(iter(data.take(1).with_format("arrow").iter(1))).schema


def examine_hub(location: str, options: Options) -> tuple[int, str, tuple[int, ...]]:
    """Bytes (of the needed columns or, for streaming, of the files), digest, and bytes of each unit."""
    import datasets

    hub, data = _load(location)
    schema = _schema(location, data)
    check_schema(schema, options, location)
    with _errors(location):
        builder = datasets.load_dataset_builder(**hub.load_options)
        if hub.streaming == "true":
            units = _shard_bytes(builder, hub, data.num_shards)
        else:
            size, rows = data.select_columns(column_names(schema, options)).data.nbytes, len(data)
            starts = range(0, rows, _UNIT_ROWS)
            units = tuple(size * min(_UNIT_ROWS, rows - start) // rows for start in starts)
    count = len(units) if hub.streaming == "true" else rows
    digest = xxhash.xxh3_128_hexdigest(f"{builder.config_id}\n{builder.hash}\n{hub.split}\n{count}".encode())
    return sum(units), digest, units


def _shard_bytes(builder: Any, hub: _Hub, shards: int) -> tuple[int, ...]:
    files = [str(file) for file in (builder.config.data_files or {}).get(hub.split, [])]
    sizes = [os.path.getsize(file) if os.path.isfile(file) else identity(open_remote(file)).size or 0 for file in files]
    return tuple(sizes) if len(sizes) == shards else (sum(sizes) // shards,) * shards


def read_hub(
    location: str, first: int, last: int, options: Options, max_bytes: int, counts: Counts
) -> Iterator[SourceRow]:
    """Rows of units [first, last). A damaged streamed shard ends with a row with a reason."""
    hub, data = _load(location)
    schema = _schema(location, data)
    check_schema(schema, options, location)
    data = data.select_columns(column_names(schema, options)).with_format("arrow")
    with _errors(location):
        if hub.streaming != "true":
            rows = data.select(range(first * _UNIT_ROWS, min(last * _UNIT_ROWS, len(data))))
            yield from _rows(rows, options, max_bytes, counts)
            return
        for index in range(first, last):
            try:
                yield from _rows(data.shard(num_shards=data.num_shards, index=index), options, max_bytes, counts)
            except (ValueError, EOFError, zlib.error, pa.ArrowException) as error:
                yield SourceRow(counts.lines + 1, "", f"shard {index} is damaged from here on: {error}")


def _rows(data: Any, options: Options, max_bytes: int, counts: Counts) -> Iterator[SourceRow]:
    for table in data.iter(_BATCH_ROWS):
        for batch in table.to_batches():
            counts.bytes_read += batch.nbytes
            yield from batch_rows(batch, options, max_bytes, counts)
