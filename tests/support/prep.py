"""Preparing files in tests, and comparing what came of it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.plan import Settings
from data_prep.pool import Workers
from data_prep.prepare import Prepared, Request, prepare
from data_prep.sources import find_inputs


def request(
    paths: Sequence[Path], tokenizer: Path, out: Path, settings: Settings | None = None, **more: Any
) -> Request:
    return Request(find_inputs(list(map(str, paths))), tokenizer, out, settings or Settings(), **more)


def prepare_files(
    paths: Sequence[Path], tokenizer: Path, out: Path, workers: int = 1, settings: Settings | None = None, **more: Any
) -> Prepared:
    with Workers(workers) as processes:
        return prepare(request(paths, tokenizer, out, settings, **more), processes)


def tree(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, but for prep/place.json, which says where the inputs lie."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "place.json")
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
