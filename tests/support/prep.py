"""Preparation of files in tests, and comparison of the results."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.format import Dataset
from data_prep.jobs import PreparationSettings, Prepared, PrepareRequest, Workers, prepare
from data_prep.sources import Options, RowReader, SourceInput, examine, find_inputs
from data_prep.storage import Cache
from data_prep.tokenizer import load
from tests.support.datasets import documents_of

WORDS = ["the", "curved", "blades", "by", "carolyn", "wells", "never", "mind", "others", "some", "little", "meaning"]


def texts(seed: int, count: int) -> list[str]:
    """Documents of words, each with its own end."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(1, 60))) + f" {seed} {index}." for index in range(count)]


def jsonl(documents: Iterable[str]) -> bytes:
    return b"".join(json.dumps({"text": document}).encode() + b"\n" for document in documents)


def rows_file(folder: Path, rows: list[dict[str, object]], kind: str) -> Path:
    """A file of rows, jsonl or parquet."""
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def whole(source: SourceInput, cache: Cache, options: Options | None = None, **more: Any) -> RowReader:
    """The rows of a whole input."""
    options = options or Options()
    examined = examine(source, cache, options)
    last = examined.bytes if examined.unit_bytes is None else len(examined.unit_bytes)
    return RowReader(source, 0, last, options, cache, **more)


def request(
    paths: Sequence[Path], tokenizer: Path, out: Path, settings: PreparationSettings | None = None, **more: Any
) -> PrepareRequest:
    return PrepareRequest(find_inputs(list(map(str, paths))), tokenizer, out, settings or PreparationSettings(), **more)


def prepare_files(
    paths: Sequence[Path],
    tokenizer: Path,
    out: Path,
    workers: int = 1,
    settings: PreparationSettings | None = None,
    **more: Any,
) -> Prepared:
    with Workers(workers) as processes:
        return prepare(request(paths, tokenizer, out, settings, **more), processes)


def decoded(folder: Path) -> list[str]:
    """The documents of a data set as text."""
    dataset = Dataset(folder)
    decode = load(dataset.tokenizer_path).decode
    return [decode(ids).replace(" .", ".") for ids in documents_of(dataset)]


def tree(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, except prep/place.json (locations of the inputs)."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "place.json")
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
