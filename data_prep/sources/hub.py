"""Data sets of the Hub, or local folders of `save_to_disk` or the Hub's layout: `hub:OWNER/NAME?split=train&...`.

The library `datasets` loads them. The units are blocks of rows.
"""

import contextlib
import functools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import xxhash

from data_prep.common.errors import UserError, library_errors
from data_prep.sources.input_types import HUB, InputRange, Options, SourceRow
from data_prep.sources.parquet_tables import batch_rows, check_schema, column_names

_UNIT_ROWS, _BATCH_ROWS = 1000, 250
_COMMIT = re.compile(r"[0-9a-f]{40}")
_KEYS = ("name", "split", "revision")
_PARTS = re.compile(rf"(.*?)(?:\?((?:{'|'.join(_KEYS)})=.*))?", re.DOTALL)  # the name of a folder may have a ?


class _Hub(NamedTuple):
    """The parts of a `hub:` location."""

    path: str
    name: str | None = None
    split: str | None = None
    revision: str | None = None

    @property
    def location(self) -> str:
        query = urlencode({key: value for key in _KEYS if (value := getattr(self, key))})
        return f"{HUB}{self.path}?{query}" if query else f"{HUB}{self.path}"

    @property
    def load_options(self) -> dict[str, Any]:
        return {"path": self.path, "name": self.name, "revision": self.revision}

    @property
    def saved_state(self) -> Path:
        """A file that only folders of `save_to_disk` have."""
        return Path(self.path, "state.json")


def _parse(location: str) -> _Hub:
    path, query = _PARTS.fullmatch(location.removeprefix(HUB)).groups("")  # type: ignore[union-attr]
    given = dict(parse_qsl(query, keep_blank_values=True))
    if not path or given.keys() - set(_KEYS) or ("?" in path and not os.path.isdir(path)):
        raise UserError(f"{location} is not of the form hub:OWNER/NAME?{'=...&'.join(_KEYS)}=...")
    return _Hub(path, **given)


def _errors(location: str) -> contextlib.AbstractContextManager[None]:
    return library_errors(f"{location} cannot be loaded", "Check its name and the network.")


def full_location(value: str) -> str:
    """The full location of a `hub:` value, with its split and the current commit as its revision.

    Raises UserError for an unknown data set, split or configuration, and if a choice is missing.
    """
    import datasets

    hub = _parse(value)
    if os.path.isdir(hub.path):
        hub = hub._replace(path=os.path.abspath(hub.path))
    if hub.saved_state.is_file():
        return _Hub(hub.path).location
    with _errors(value):
        builder = datasets.load_dataset_builder(**hub.load_options)
        splits = datasets.get_dataset_split_names(hub.path, config_name=hub.name, revision=hub.revision)
    if (hub.split is None and len(splits) > 1) or hub.split not in (None, *splits):
        raise UserError(f"{value} has the splits {', '.join(splits)}; choose one with split=NAME.")
    if not os.path.isdir(hub.path) and _COMMIT.fullmatch(builder.hash or ""):
        hub = hub._replace(revision=builder.hash)
    return hub._replace(split=hub.split or splits[0]).location


@functools.lru_cache(maxsize=4)  # a worker reads many ranges of one data set
def load_hub(location: str) -> Any:
    """The datasets.Dataset of a location."""
    import datasets

    hub = _parse(location)
    with _errors(location):
        if hub.saved_state.is_file():
            data = datasets.load_from_disk(hub.path)
        else:
            data = datasets.load_dataset(**hub.load_options, split=hub.split)
    if not isinstance(data, datasets.Dataset):  # the state of a saved data set is missing
        raise UserError(f"{location} is not one data set. Save it again with save_to_disk, or add split=NAME.")
    return data


def examine_hub(location: str, options: Options) -> tuple[int, str, tuple[int, ...]]:
    """Bytes of the needed columns, digest, and bytes of each unit."""
    import datasets

    hub, data = _parse(location), load_hub(location)
    check_schema(data.features.arrow_schema, options, location)
    with _errors(location):
        size = data.select_columns(column_names(data.features.arrow_schema, options)).data.nbytes
        if hub.saved_state.is_file():
            version = hub.saved_state.read_text()  # has a fingerprint of the data
        else:
            builder = datasets.load_dataset_builder(**hub.load_options)
            version = f"{builder.config_id}\n{builder.hash}"
    rows = len(data)
    units = tuple(size * min(_UNIT_ROWS, rows - start) // rows for start in range(0, rows, _UNIT_ROWS))
    digest = xxhash.xxh3_128_hexdigest(f"{version}\n{hub.split}\n{rows}".encode())
    return sum(units), digest, units


def read_hub(part: InputRange) -> Iterator[SourceRow]:
    """The rows of a range of a data set of the Hub."""
    location, data = part.source.location, load_hub(part.source.location)
    schema = data.features.arrow_schema
    check_schema(schema, part.options, location)
    with _errors(location):
        columns = data.select_columns(column_names(schema, part.options)).with_format("arrow")
        rows = columns.select(range(part.first * _UNIT_ROWS, min(part.last * _UNIT_ROWS, len(data))))
        for table in rows.iter(_BATCH_ROWS):
            for batch in table.to_batches():
                part.bytes_read += batch.nbytes
                yield from batch_rows(batch, part, batch.nbytes // max(batch.num_rows, 1))


def read_records(location: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of a data set of the Hub with these columns, or all if it has none of them, without decoded media."""
    data = load_hub(location)
    with _errors(location):
        if known := [name for name in data.column_names if name in columns]:
            data = data.select_columns(known)
        for table in data.with_format("arrow").iter(_BATCH_ROWS):
            yield from table.to_pylist()
