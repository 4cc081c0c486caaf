"""Manifest of a checkpoint: read, write, and verify the files against it."""

import hashlib
import json
import os
import re
import reprlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import xxhash

from data_prep.common.errors import UserError
from data_prep.common.files import hash_stream, open_below, write_json
from data_prep.common.reading import cannot_read, parse_json, read_bytes, typed, unusable

NAME = "manifest.json"
MAX_MANIFEST_BYTES = 256 << 20
_NAMED = re.compile(r"step-(\d{8})")  # with any suffix: renamed folders and folders that are not committed yet have one
_VERSION = 1
_OTHER_VERSION = "was written by another version of Maskwright"
Files = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint: `state` is the state of the run apart from the weights; `time` is in Unix seconds."""

    path: Path
    step: int
    state: dict[str, Any]
    files: Files
    time: float = 0.0

    @property
    def bytes(self) -> int:
        """The size of all files except the manifest."""
        return sum(entry["bytes"] for entry in self.files.values())

    def write(self) -> None:
        """Write manifest.json with its own checksum and the time. This file makes a complete folder a checkpoint."""
        manifest = {
            "format": "maskwright-checkpoint",
            "version": _VERSION,
            "step": self.step,
            "time": round(time.time(), 3),
            "state": self.state,
            "files": self.files,
        }
        write_json(self.path / NAME, manifest | {"checksum": checksum_of(manifest)})


@dataclass(frozen=True)
class _File:
    bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class _Manifest:
    """The contents of manifest.json."""

    format: Literal["maskwright-checkpoint"]
    version: Literal[1]
    step: int
    state: dict[str, Any]
    files: dict[str, _File]
    checksum: str
    time: float


def read(path: Path) -> Checkpoint:
    """Read a checkpoint's manifest.

    Raises UserError if it is missing or altered, belongs to another step, or names files outside the folder.
    """
    if path.is_symlink():
        raise unusable(path / NAME, "its folder is a symbolic link, which a checkpoint may not be")
    content = read_bytes(path / NAME, MAX_MANIFEST_BYTES, follow=False)
    try:
        return parse(content, path)
    except ValueError as error:
        raise unusable(path / NAME, str(error)) from None


def parse(content: bytes, path: Path) -> Checkpoint:
    """Parse the content of the manifest of the checkpoint at `path`; raises ValueError if it is invalid."""
    raw = parse_json(content, dict[str, Any], nan=True)
    if type(version := raw.get("version")) is int and version != _VERSION:
        raise ValueError(f"it {_OTHER_VERSION}, in format {version}; this version reads format {_VERSION}")
    manifest: _Manifest = typed(_Manifest, raw)
    if manifest.checksum != checksum_of({name: value for name, value in raw.items() if name != "checksum"}):
        raise ValueError("its checksum does not match its content")
    named = _NAMED.match(path.name)
    if named and int(named[1]) != manifest.step:
        raise ValueError(f"it is of step {manifest.step}, and its folder of step {int(named[1])}")
    if not manifest.files:
        raise ValueError("it names no files")
    for name in manifest.files:
        _check_name(name)
    return Checkpoint(path, manifest.step, manifest.state, raw["files"], manifest.time)


def condition(problem: str) -> str:
    """The word for a checkpoint with this problem: "damaged" or "of another version"."""
    return "of another version" if _OTHER_VERSION in problem else "damaged"


def _check_name(name: str) -> None:
    """Raise ValueError unless it is the plain relative name of a file in the checkpoint's folder."""
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        raise ValueError(f"it names the file {reprlib.repr(name)}, which is outside the folder")
    if not all(part not in ("", ".") and part.isprintable() for part in parts) or name == NAME:
        raise ValueError(f"it names the file {reprlib.repr(name)}, which is no name of a checkpoint's file")


def verify(
    path: Path, part: int = 0, parts: int = 1, sizes_only: bool = False, progress: Callable[[int], None] | None = None
) -> str | None:
    """Check every `parts`-th file, from file `part`, against the manifest; return the problem, or None.

    Args:
        sizes_only: compare sizes, without reading the files.
        progress: called with the number of bytes read since the last call.
    """
    try:
        checkpoint = read(path)
    except UserError as error:
        return str(error)
    for name in sorted(checkpoint.files)[part::parts]:
        if problem := _problem_of(path, name, checkpoint.files[name], sizes_only, progress):
            return problem
    return None


def _problem_of(
    path: Path, name: str, entry: dict[str, Any], sizes_only: bool, progress: Callable[[int], None] | None
) -> str | None:
    """The problem with a file of a checkpoint, or None."""
    file = path / name
    try:
        with open_below(path, name) as opened:
            size = os.fstat(opened.fileno()).st_size
            if size == entry["bytes"] and (
                sizes_only or hash_stream(opened, xxhash.xxh3_128(), progress) == entry["xxh3_128"]
            ):
                return None
        return f"{file} differs from its checksum"
    except (OSError, ValueError) as error:
        return str(cannot_read(file, error))


def manifest_sha256(path: Path) -> str:
    """The SHA-256 of the manifest of a checkpoint, which names the checksums of its files. UserError if missing."""
    return hashlib.sha256(read_bytes(path / NAME, MAX_MANIFEST_BYTES, follow=False)).hexdigest()


def checksum_of(manifest: dict[str, Any]) -> str:
    """The checksum of a manifest without its entry `checksum`."""
    return xxhash.xxh3_128_hexdigest(json.dumps(manifest, sort_keys=True).encode())
