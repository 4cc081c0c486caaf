"""Log files of a run: find them, print the last lines, follow new ones."""

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from data_prep.common.errors import UserError
from data_prep.common.files import MAX_LINE_BYTES, limited_lines, refuse_link
from data_prep.common.reading import open_regular
from pretrain.run import RunFolder

_MAX_LINE_BYTES = 1 << 20
_POLL = 0.25  # seconds between polls
_SETTLED = 2.0  # seconds without a new line after which a finished run's log is complete


def logs_of(run: Path) -> list[Path]:
    """The logs of a run's Slurm jobs, in RUN/slurm, newest last."""
    logs = refuse_link(RunFolder(run).slurm).glob("*.log")
    files = [path for path in logs if path.is_file() and not path.is_symlink()]
    return sorted(files, key=lambda path: (path.stat().st_mtime, str(path)))


def find_log(run: Path, job: str | None) -> Path | None:
    """The log of a Slurm job of a run, by default of the newest one; None if the run has no logs.

    Raises:
        UserError: if the run has no log of this job.
    """
    logs = logs_of(run)
    chosen = [path for path in logs if job in (None, path.stem)]
    if job is not None and not chosen:
        known = ", ".join(path.stem for path in logs)
        others = f"Its jobs are {known}." if known else "It has no logs of Slurm jobs: leave --job out."
        raise UserError(f"{run} has no log of job {job}. {others}")
    return chosen[-1] if chosen else None


def log_lines(path: Path, run: Path, count: int | None, follow: bool = False) -> Iterator[str]:
    """The last `count` lines of a log or of the journal; None means all.

    Args:
        follow: then also new complete lines until the run is over.
    """
    form = _journal_lines if path == RunFolder(run).journal else _text
    if follow:
        while not path.exists() and not _over(run):
            time.sleep(_POLL)
        if not path.exists():
            return
    with open_regular(path, follow=False) as file:
        lines = _lines(file, complete=follow)
        yield from form(lines if count is None else deque(lines, count))
        place = file.tell()
    quiet_since = time.monotonic()
    while follow:
        new, place = _new_lines(path, place)
        yield from form(new)
        if new:
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > _SETTLED:
            if _over(run):
                return
            quiet_since = time.monotonic()
        time.sleep(_POLL)


def _journal_lines(lines: Iterable[bytes]) -> Iterator[str]:
    """Format lines of the journal. Damaged lines are skipped."""
    from pretrain.reporting import metric_texts
    from pretrain.run import Entry

    for entry in filter(None, map(Entry.from_line, lines)):
        words = metric_texts(entry.metrics) or [f"{name} {value:g}" for name, value in entry.metrics.items()]
        when = datetime.fromtimestamp(entry.time).isoformat(" ", "seconds")
        yield " | ".join([f"{when} step {entry.step:,}", *words])


def _text(lines: Iterable[bytes]) -> Iterator[str]:
    return (line.decode("utf-8", errors="replace") for line in lines)


def _lines(file: BinaryIO, complete: bool) -> Iterator[bytes]:
    """The lines of a file; a carriage return also ends a line. `complete` leaves out an incomplete last line."""
    for size, line in limited_lines(file, _MAX_LINE_BYTES):
        if complete and not line.endswith(b"\n"):
            file.seek(-size, os.SEEK_CUR)
            return
        yield from line.splitlines()


def _new_lines(path: Path, place: int) -> tuple[list[bytes], int]:
    """Complete lines from position `place`. A file that became shorter is read from its start."""
    with open_regular(path, follow=False) as file:
        size = file.seek(0, os.SEEK_END)
        place = 0 if size < place else place
        file.seek(place)
        content = file.read(MAX_LINE_BYTES)
    whole = content.rfind(b"\n") + 1 or (len(content) == MAX_LINE_BYTES) * MAX_LINE_BYTES  # drops a longer line
    return content[:whole].splitlines(), place + whole


def _over(run: Path) -> bool:
    """Whether the log is complete: the run is over, and none of its jobs is pending or running."""
    from launchers.slurm import own_jobs

    folder = RunFolder(run)
    try:
        if not folder.read_status().is_over:
            return False
    except UserError:
        pass
    return not (folder.slurm.is_dir() and any(job.trains(run) for job in own_jobs()[0]))
