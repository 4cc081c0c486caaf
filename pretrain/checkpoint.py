"""Checkpoints that are either committed and verifiable, or not there at all.

Every rank writes its part below `step-N.tmp`, makes it durable and hashes it; rank 0 checks that nothing is missing,
writes `manifest.json` last, and renames the folder. A kill at any moment leaves the previous checkpoint as it was.
"""

import itertools
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
import xxhash

from data_prep.errors import UserError
from data_prep.files import fsync_folder, write_json

_FOLDER = re.compile(r"step-(\d{8})")
_RANK_FILE = re.compile(r"zero_pp_rank_(\d+)_")
Files = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint: `state` is what the run stored beside the weights."""

    path: Path
    step: int
    state: dict[str, Any]
    files: Files


def commit(folder: Path, step: int, state: dict[str, Any], save: Callable[[Path], None], keep: int) -> Path:
    """Write and commit the checkpoint of `step`; a collective.

    Args:
        folder: RUN/checkpoints.
        state: what resuming needs beside weights and optimizer: JSON values.
        save: writes this rank's part below a folder; a collective.
        keep: committed checkpoints to keep, the newest.

    Returns:
        The committed folder.
    """
    rank = dist.get_rank()
    final = folder / f"step-{step:08d}"
    temporary = final.with_name(final.name + ".tmp")
    if rank == 0:
        remove_leftovers(folder)
        temporary.mkdir()
    dist.barrier()
    save(temporary)
    dist.barrier()
    parts: list[Files] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, _make_durable(temporary, rank))
    if rank == 0:
        if not parts[0] or len({bool(part) for part in parts[1:]}) > 1:
            raise RuntimeError(f"{temporary}: only some ranks have written anything")
        files = {name: entry for part in parts for name, entry in part.items()}
        present = {str(path.relative_to(temporary)) for path in temporary.rglob("*") if path.is_file()}
        if present != set(files):
            raise RuntimeError(f"{temporary}: files {present ^ set(files)} are not accounted for by any rank")
        _write_manifest(temporary, step, state, files)
        os.replace(temporary, final)
        fsync_folder(folder)
        for _, old in committed(folder)[keep:]:
            _discard(old)
    dist.barrier()
    return final


def committed(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of the committed checkpoints in RUN/checkpoints, newest first."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _FOLDER.fullmatch(path.name)
        if match and path.is_dir():
            found.append((int(match[1]), path))
    return sorted(found, reverse=True)


def read(path: Path) -> Checkpoint:
    """Read a checkpoint's manifest.

    Raises:
        UserError: if it is missing or altered.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        checksum = manifest.pop("checksum")
        if checksum != _checksum_of(manifest):
            raise ValueError("its checksum does not match its content")
        return Checkpoint(path, manifest["step"], manifest["state"], manifest["files"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path / 'manifest.json'} cannot be used: {error}") from None


def verify(path: Path, part: int = 0, parts: int = 1) -> str | None:
    """Check every `parts`-th file from `part` on against the manifest: what is wrong, or None."""
    try:
        checkpoint = read(path)
    except UserError as error:
        return str(error)
    for name in sorted(checkpoint.files)[part::parts]:
        file, entry = path / name, checkpoint.files[name]
        try:
            if file.stat().st_size != entry["bytes"] or _hash(file) != entry["xxh3_128"]:
                return f"{file} differs from its checksum"
        except OSError as error:
            return f"{file} cannot be read ({error.strerror})"
    return None


def newest_verified(folder: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that every rank finds intact; a collective. None if there is no checkpoint at all.

    Args:
        report: is told, on rank 0, of each damaged checkpoint that was passed over.

    Raises:
        UserError: if there are checkpoints, and all are damaged.
    """
    agreed: list[Any] = [committed(folder)]
    dist.broadcast_object_list(agreed)
    problems: list[str] = []
    for _, path in agreed[0]:
        if (problem := verify_together(path)) is None:
            return read(path)
        problems.append(problem)
        if dist.get_rank() == 0:
            report(f"checkpoint {path.name} is damaged and passed over: {problem}")
    if problems:
        raise UserError(
            f"{folder}: no checkpoint is intact ({problems[0]}); restore one, or move the folder away to start again"
        )
    return None


def verify_together(path: Path) -> str | None:
    """`verify` with the files dealt out over the ranks; a collective, with one answer for all."""
    found: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, verify(path, dist.get_rank(), dist.get_world_size()))
    return next((problem for problem in found if problem), None)


def _make_durable(folder: Path, rank: int) -> Files:
    """Flush and hash the files that this rank wrote; the folders too, on rank 0."""
    files: Files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            if rank == 0:
                fsync_folder(path)
            continue
        match = _RANK_FILE.search(path.name)
        if rank == (int(match[1]) if match else 0):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
            files[str(path.relative_to(folder))] = {"bytes": path.stat().st_size, "xxh3_128": _hash(path)}
    return files


def _write_manifest(folder: Path, step: int, state: dict[str, Any], files: Files) -> None:
    manifest = {"format": "maskwright-checkpoint", "version": 1, "step": step, "state": state, "files": files}
    write_json(folder / "manifest.json", manifest | {"checksum": _checksum_of(manifest)})


def _checksum_of(manifest: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(manifest, sort_keys=True).encode())


def _hash(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def remove_leftovers(folder: Path) -> None:
    """Remove what killed saves left behind in RUN/checkpoints; never a committed checkpoint."""
    for path in folder.glob("step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def _discard(path: Path) -> None:
    """Delete a checkpoint that is no longer kept; half deleted, it must not look committed."""
    doomed = path.rename(path.with_name(path.name + ".old.tmp"))
    shutil.rmtree(doomed, ignore_errors=True)


def set_aside(folder: Path, after_step: int) -> None:
    """Rename the checkpoints of later steps: a run that goes on from `after_step` passed over or left them.

    They no longer count as checkpoints of the run, but nobody's bytes are deleted.
    """
    for step, path in committed(folder):
        if step > after_step:
            number = next(n for n in itertools.count(1) if not path.with_name(f"{path.name}.aside-{n}").exists())
            path.rename(path.with_name(f"{path.name}.aside-{number}"))
    fsync_folder(folder)
