"""What a checkpoint holds, by its manifest, and whether that is what is on disk."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash

from data_prep.errors import UserError
from data_prep.files import write_json

NAME = "manifest.json"
Files = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint: `state` is what the run stored beside the weights; `time` is in Unix seconds."""

    path: Path
    step: int
    state: dict[str, Any]
    files: Files
    time: float = 0.0

    @property
    def bytes(self) -> int:
        """The size of all files but the manifest."""
        return sum(entry["bytes"] for entry in self.files.values())


def read(path: Path) -> Checkpoint:
    """Read a checkpoint's manifest.

    Raises:
        UserError: if it is missing or altered, or names files outside the folder.
    """
    try:
        return parse((path / NAME).read_bytes(), path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path / NAME} cannot be used: {error}") from None


def parse(content: bytes, path: Path) -> Checkpoint:
    """The checkpoint at `path` whose manifest has this content; ValueError, TypeError... if it has not."""
    manifest = json.loads(content)
    checksum = manifest.pop("checksum")
    if checksum != _checksum_of(manifest):
        raise ValueError("its checksum does not match its content")
    for name in manifest["files"]:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"it names the file {name!r}, which is outside the folder")
    return Checkpoint(path, manifest["step"], manifest["state"], manifest["files"], manifest.get("time", 0.0))


def write_manifest(folder: Path, step: int, state: dict[str, Any], files: Files) -> None:
    """Write manifest.json, with a checksum of its own; what makes a complete folder a checkpoint."""
    manifest = {
        "format": "maskwright-checkpoint",
        "version": 1,
        "step": step,
        "time": round(time.time(), 3),
        "state": state,
        "files": files,
    }
    write_json(folder / NAME, manifest | {"checksum": _checksum_of(manifest)})


def verify(
    path: Path, part: int = 0, parts: int = 1, sizes_only: bool = False, progress: Callable[[int], None] | None = None
) -> str | None:
    """Check every `parts`-th file from `part` on against the manifest: what is wrong, or None.

    Args:
        sizes_only: do not read the files.
        progress: is told how many bytes were read since it was told last.
    """
    try:
        checkpoint = read(path)
    except UserError as error:
        return str(error)
    for name in sorted(checkpoint.files)[part::parts]:
        file, entry = path / name, checkpoint.files[name]
        try:
            if file.stat().st_size != entry["bytes"] or not (
                sizes_only or hash_file(file, progress) == entry["xxh3_128"]
            ):
                return f"{file} differs from its checksum"
        except OSError as error:
            return f"{file} cannot be read ({error.strerror})"
    return None


def hash_file(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """XXH3 of a file's bytes, 128 bits, hexadecimal."""
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            if progress:
                progress(len(chunk))
    return digest.hexdigest()


def _checksum_of(manifest: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(manifest, sort_keys=True).encode())
