"""Save checkpoints in the background while training continues.

The training thread only copies the state of its rank. A second thread writes, flushes and hashes the files. It runs no
collectives, because they would mix with the collectives of the steps. Instead, the loop sums over ranks at every step
who has written (`poll`). When all ranks have, they commit at the same step (`finish`).
"""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch.distributed as dist
import xxhash

from data_prep.common.errors import UserError
from data_prep.common.files import HashedFile, fsync_path
from pretrain.checkpoint.manifest import Checkpoint, Files
from pretrain.checkpoint.remote_copies import RemoteCopies
from pretrain.checkpoint.retention import committed, remove_leftovers, retained
from pretrain.config import CheckpointConfig
from pretrain.distributed import all_gather_json
from pretrain.run import step_name

Parts = dict[str, Callable[[IO[bytes]], None]]
"""The files of a rank: the name relative to the checkpoint's folder, and the function that writes the file."""
Snapshot = Callable[[Path, bool], Parts]
ReportSaved = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class _PendingSave:
    """A save in progress: the files that the thread of this rank writes, or an earlier error."""

    step: int
    state: dict[str, Any]
    temporary: Path
    files: "Future[Files]"
    begun: float
    stalled: float

    def outcome(self) -> tuple[Files, str | None]:
        """Wait for the thread; return the files, and the problem or None."""
        try:
            return self.files.result(), None
        except OSError as error:
            return {}, f"{error.filename or self.temporary}: {error.strerror or error}"
        except Exception as error:
            return {}, f"{type(error).__name__}: {error}".splitlines()[0]


class Saver:
    """Saves the checkpoints of a run, one at a time; its state is the same on every rank.

    Args:
        folder: RUN/checkpoints.
        settings: config section `checkpoint`.
        snapshot: called with the folder of the checkpoint, and whether training continues during the save. Returns the
            parts that this rank writes. A collective.
        report: called on rank 0 with a step and the metrics of its checkpoint.
        saved_step: the step of the checkpoint that the run starts from. If checkpoint.remote has no copy of it, rank 0
            makes one.
        clock: seconds.
    """

    def __init__(
        self,
        folder: Path,
        settings: CheckpointConfig,
        snapshot: Snapshot,
        report: ReportSaved,
        saved_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._folder, self._settings, self._snapshot, self._report = folder, settings, snapshot, report
        self._is_main = dist.get_rank() == 0
        self._remote: RemoteCopies | None = None
        if settings.remote and self._is_main:
            start = folder / step_name(saved_step)
            self._remote = RemoteCopies(settings, saved_step, start if start.exists() else None)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: _PendingSave | None = None
        self._clock, self._begun = clock, clock()
        self.saved_step = saved_step
        self.failures = 0
        self.problem: str | None = None

    @property
    def busy(self) -> bool:
        """Whether a save is in progress; the same on every rank."""
        return self._pending is not None

    def poll(self) -> tuple[float, float]:
        """This rank's flags of a step, to be summed over ranks: 1 if its files are written; on rank 0, 1 if
        checkpoint.every_minutes have passed."""
        if self._remote:
            self._remote.report_failures(self._report)
        minutes = self._settings.every_minutes
        due = self._is_main and minutes is not None and self._clock() - self._begun >= minutes * 60
        return float(self._pending is not None and self._pending.files.done()), float(due)

    def begin(self, step: int, state: dict[str, Any]) -> None:
        """Start to save a checkpoint, after the save in progress; a collective. A synchronous save also finishes.

        Args:
            state: the resume state apart from weights and optimizer, as JSON values.

        Raises UserError on every rank, after checkpoint.max_failures failures in a row.
        """
        self.finish()
        start = self._begun = self._clock()
        temporary = self._folder / f"{step_name(step)}.tmp"
        problem: OSError | None = None
        if self._is_main:
            try:
                remove_leftovers(self._folder)
                temporary.mkdir()
            except OSError as error:
                problem = error
        dist.barrier()
        parts = self._snapshot(temporary, self._settings.asynchronous)
        files = self._thread.submit(write_parts, temporary, parts, problem)
        self._pending = _PendingSave(step, state, temporary, files, start, self._clock() - start)
        if not self._settings.asynchronous:
            self.finish()

    def finish(self) -> None:
        """Wait for the files of all ranks and commit the save in progress, if any; a collective.

        Raises UserError on every rank, after checkpoint.max_failures failures in a row.
        """
        if self._pending is None:
            return
        start = self._clock()
        pending, self._pending = self._pending, None
        outcomes = all_gather_json(pending.outcome())
        told = [f"rank {rank}: {problem}" for rank, (_, problem) in enumerate(outcomes) if problem]
        problem = told[0] if told else None
        if self._is_main and not told:
            problem = self._commit(pending, [files for files, _ in outcomes])
        if problem := all_gather_json(problem)[0]:  # of rank 0
            self._fail(pending, problem)
            return
        self.saved_step, self.failures, self.problem = pending.step, 0, None
        if self._is_main:
            now = self._clock()
            stalled = {"checkpoint/seconds": pending.stalled + now - start}
            self._report(pending.step, stalled | {"checkpoint/write_seconds": now - pending.begun})

    def close(self) -> None:
        """Wait for background work; for a remote copy some minutes at most."""
        self._thread.shutdown()
        if self._remote:
            self._remote.close()

    def _commit(self, pending: _PendingSave, parts: list[Files]) -> str | None:
        """Commit on rank 0, after all ranks have written; return the problem, or None."""
        temporary, final = pending.temporary, self._folder / step_name(pending.step)
        files = {name: entry for part in parts for name, entry in part.items()}
        present = {str(path.relative_to(temporary)) for path in temporary.rglob("*") if path.is_file()}
        if present != set(files) or not files:
            return f"{temporary}: files {sorted(present ^ set(files))} are not what the ranks have written"
        try:
            Checkpoint(temporary, pending.step, pending.state, files).write()
            temporary.rename(final)
            fsync_path(self._folder)
        except OSError as error:
            return f"{error.filename or temporary}: {error.strerror}"
        if self._remote:
            self._remote.push(final)
        with contextlib.suppress(OSError):  # the next save renames the rest
            self._prune()
        return None

    def _prune(self) -> None:
        """Rename old checkpoints, and delete them in the background."""
        steps = dict(committed(self._folder))
        kept = retained([*steps], self._settings)
        needed = self._remote.needed() if self._remote else set()
        for step, path in steps.items():
            if step not in kept and path not in needed:
                old = path.rename(path.with_name(f"{path.name}.old.tmp"))  # half deleted, it must not look committed
                self._thread.submit(shutil.rmtree, old, ignore_errors=True)

    def _fail(self, pending: _PendingSave, problem: str) -> None:
        self.failures += 1
        self.problem = f"the checkpoint of step {pending.step} was not saved ({problem})"
        if self._is_main:
            shutil.rmtree(pending.temporary, ignore_errors=True)
            print(f"warning: {self.problem}", file=sys.stderr, flush=True)
            self._report(pending.step, {"checkpoint/failed": self.failures})
        if self.failures >= self._settings.max_failures:
            raise UserError(
                f"{self.problem}; that is failure {self.failures} in a row, and checkpoint.max_failures is "
                f"{self._settings.max_failures}: make room, or repair the disk"
            )


def write_parts(folder: Path, parts: Parts, problem: OSError | None = None) -> Files:
    """Write a rank's files, and make them and their folders durable.

    Returns:
        The size and checksum of each file.

    Raises OSError if the disk is full or fails; it names the file. Also the `problem` that the folder could not be
    made.
    """
    if problem:
        raise problem
    files: Files = {}
    for name, write in parts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        files[name] = _written(path, write)
    for parent in {(folder / name).parent for name in parts}:
        fsync_path(parent)
    return files


def _written(path: Path, write: Callable[[IO[bytes]], None]) -> dict[str, Any]:
    with open(path, "wb") as file:
        hashed = HashedFile(file, xxhash.xxh3_128())
        try:
            write(cast(IO[bytes], hashed))
            file.flush()
            os.fsync(file.fileno())
        except (OSError, RuntimeError) as error:  # torch's writer turns an OSError into a RuntimeError
            cause = error if isinstance(error, OSError) else hashed.error
            if cause is None:
                raise
            raise OSError(cause.errno, cause.strerror, str(path)) from None
    return {"bytes": hashed.bytes, "xxh3_128": hashed.digest.hexdigest()}
