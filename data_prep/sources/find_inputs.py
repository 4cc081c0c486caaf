"""`--input` values to inputs: files, folders, globs, URLs of these, and data sets of the Hub."""

import difflib
import os
import re
from collections.abc import Callable, Iterable
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import orjson

from data_prep.errors import UserError, working_directory
from data_prep.sources.convert import KNOWN, how_to_convert
from data_prep.sources.input_types import HUB, SUFFIXES, SourceInput, kind_of
from data_prep.urls import Remote, file_name, is_url, open_remote, remote_errors, shown, without_query

_NAMED = re.compile(r"([A-Za-z0-9_-]+)=(.+)", re.DOTALL)


def find_inputs(values: Iterable[str | Path]) -> list[SourceInput]:
    """Inputs for `--input` values, each a file, a folder (every readable file under it), a glob pattern, a URL of
    these or `hub:OWNER/NAME?name=CONFIG&split=SPLIT&revision=REV&streaming=true`, with a source name in front or not:
    `NAME=VALUE`.

    Files of a folder or pattern are sorted; a `save_to_disk` folder counts as its arrow files; a file named twice is
    read once, under the first name. Raises UserError for a value that names nothing, a file of an unknown type or whose
    name is not in UTF-8, a saved DatasetDict, and what cannot be reached.
    """
    inputs: dict[str, SourceInput] = {}
    for value in map(str, values):
        source, value = _named(value)
        for location in _locations(value):
            kind = "hub" if location.startswith(HUB) else kind_of(location)
            if kind is None:
                raise UserError(_unknown_type(location))
            try:
                location.encode()
            except UnicodeEncodeError:  # which plan and manifest could not hold
                raise UserError(f"The name {location!r} is not in UTF-8; rename it.") from None
            same = location if is_url(location) or kind == "hub" else os.path.realpath(location)
            inputs.setdefault(same, SourceInput(source, location, kind))
    return list(inputs.values())


def _named(value: str) -> tuple[str, str]:
    """`NAME=VALUE` apart, unless something has that whole name, as folders like `year=2020` do."""
    match = _NAMED.fullmatch(value)
    if match is None or os.path.exists(value) or (has_magic(value) and glob(value, recursive=True)):
        return "", value
    return match[1], match[2]


def _locations(value: str) -> list[str]:
    if value.startswith(HUB):
        from data_prep.sources.hub import resolve

        return [resolve(value)]
    if is_url(value):
        remote = open_remote(value)
        if not remote.is_local or remote.tail:
            with remote_errors(value):
                return _remote(value, remote)
        value = remote.path
    try:
        return _local(value)
    except OSError as error:
        raise UserError(f"{error.filename or value} cannot be read: {error.strerror}.") from error


def _local(value: str) -> list[str]:
    path = Path(os.path.abspath(value))
    if path.is_dir():
        files = [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]
        found = [str(path / name) for name in readable_files(str(path), files, lambda name: (path / name).read_bytes())]
    elif has_magic(value) and not path.exists():
        found = sorted(os.path.abspath(name) for name in glob(value, recursive=True) if os.path.isfile(name))
    else:
        found = [str(path)] if path.is_file() else []
    if not found:
        raise UserError(_nothing_found(value, path))
    return found


def _nothing_found(value: str, path: Path) -> str:
    """The message for a folder without inputs, a pattern that matches nothing, or a path that does not exist."""
    if path.is_dir():
        others = sorted(str(file) for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
        if not others:
            return f"No input file in the folder {value}: it is empty. Correct --input."
        return f"No input file in the folder {value}, but files of other types, such as {_unknown_type(others[0])}"
    missing = f"No input file at {value}{working_directory(value)}."
    names = os.listdir(path.parent) if path.parent.is_dir() else []
    if likely := difflib.get_close_matches(path.name, names, n=1, cutoff=0.7):
        return f"{missing} Did you mean {os.path.join(os.path.dirname(value), likely[0])}?"
    return f"{missing} Name a file, a folder, a pattern in quotes or a URL."


def _unknown_type(location: str) -> str:
    name = shown(location)
    suffix = os.path.splitext(file_name(location))[1]
    return f"{os.path.basename(name) or name}: {suffix or 'a name without an ending'} is not supported. " + (
        KNOWN if is_url(location) else how_to_convert(location)
    )


def _remote(url: str, remote: Remote) -> list[str]:
    fs, path = remote.fs, remote.path
    is_http = url.startswith(("http://", "https://"))
    if any(sign in without_query(path) for sign in ("*[" if is_http else "*?[")):
        found = sorted(name for name, info in fs.glob(path, detail=True).items() if info["type"] == "file")
    elif kind_of(url) and fs.info(path)["type"] != "directory":
        return [url]
    else:
        found = _remote_folder(url, remote)
    if not found:
        raise UserError(
            f"No input file at {shown(url)}; give the URL of a folder, a glob pattern or a file; inputs end in "
            f"{', '.join(SUFFIXES)}."
        )
    return [remote.url(name) for name in found]


def _remote_folder(url: str, remote: Remote) -> list[str]:
    fs, root = remote.fs, remote.path.rstrip("/") + "/"
    if root == "/":
        root = ""
    inside = [name.removeprefix(root) for name in fs.find(root)]
    return [root + name for name in readable_files(shown(url), inside, lambda name: fs.cat_file(root + name))]


def readable_files(folder: str, names: list[str], read: Callable[[str], bytes]) -> list[str]:
    """Of all file names under a folder (relative, with /), those to read, sorted. `read` returns a file's bytes.

    Hidden files are left out, and those that `state.json` of a `save_to_disk` folder does not list. Raises UserError
    for a saved DatasetDict, which holds several splits, and for a listed file that is missing.
    """
    names = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    present, listed = set(names), {}
    for name in names:
        parent, _, base = name.rpartition("/")
        prefix = f"{parent}/" if parent else ""
        if base == "dataset_dict.json":
            splits = _json(read(name)).get("splits")
            splits = splits if isinstance(splits, list) else []
            there = ", ".join(f"{folder.rstrip('/')}/{prefix}{split}" for split in splits)
            raise UserError(f"{folder} holds a saved DatasetDict; give one of its splits: {there or 'none is listed'}.")
        if base == "state.json" and (files := _json(read(name)).get("_data_files")) is not None:
            try:
                listed[prefix] = {prefix + file["filename"] for file in files}
            except (TypeError, KeyError) as error:
                raise UserError(f"{name} in {folder} is not what save_to_disk writes: no list of files.") from error
            if missing := sorted(listed[prefix] - present):
                raise UserError(f"{folder} is incomplete: its {name} lists {missing[0]}, which is not there.")
    return sorted(
        name for name in names if name.endswith(SUFFIXES) and name in listed.get(name[: name.rfind("/") + 1], (name,))
    )


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
