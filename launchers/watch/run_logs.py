"""Where a run's logs are, their last lines, and what comes after those."""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from glob import escape, glob
from pathlib import Path

from data_prep.errors import UserError
from data_prep.reading import open_regular, read_bytes

Form = Callable[[list[bytes]], list[str]]

_MAX_SCRIPT_BYTES = 1 << 20
_POLL = 0.25  # seconds between two looks
_SETTLED = 2.0  # without a new line, after which a run that has ended is over
_OUTPUT = re.compile(r'^#SBATCH --output="(.*)"$', re.MULTILINE)


def logs_of(run: Path) -> list[Path]:
    """The logs of a run's Slurm jobs, the newest last; where its script sends them, or in RUN/slurm."""
    patterns = [str(Path(escape(str(run))) / "slurm" / "*.log"), *_elsewhere(run / "slurm" / "job.sh")]
    found = {Path(name) for pattern in patterns for name in glob(pattern)}
    return sorted((path for path in found if path.is_file()), key=lambda path: (path.stat().st_mtime, str(path)))


def last_lines(path: Path, count: int | None, form: Form | None = None) -> list[str]:
    """The last `count` lines of a file, all if that is None; `form` turns what is read into lines for people."""
    return (form or _text)(_tail(path, count)[0])


def follow(path: Path, run: Path, count: int | None, form: Form | None = None) -> Iterator[str]:
    """The last lines, and all that come after, until the run is over; a line counts when it is whole."""
    while not path.exists():
        if _over(run):
            return
        time.sleep(_POLL)
    lines, place = _tail(path, count, whole_alone=True)
    yield from (form or _text)(lines)
    quiet_since = time.monotonic()
    while True:
        new, place = _new_lines(path, place)
        yield from (form or _text)(new)
        if new:
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > _SETTLED:
            if _over(run):
                return
            quiet_since = time.monotonic()
        time.sleep(_POLL)


def journal_lines(lines: list[bytes]) -> list[str]:
    """Lines of the journal in words; those that are damaged are left out."""
    from pretrain.reporting.progress_line import shown
    from pretrain.run.journal import parse_entry

    found = []
    for entry in filter(None, map(parse_entry, lines)):
        words = shown(entry.metrics) or [f"{name} {value:g}" for name, value in entry.metrics.items()]
        when = datetime.fromtimestamp(entry.time).isoformat(" ", "seconds")
        found.append(" | ".join([f"{when} step {entry.step:,}", *words]))
    return found


def _elsewhere(script: Path) -> list[str]:
    """Patterns of the logs that a job script names; % and what follows it stand for anything there."""
    try:
        text = read_bytes(script, _MAX_SCRIPT_BYTES).decode(errors="replace")
    except UserError:
        return []
    found = []
    for value in _OUTPUT.findall(text):
        name = re.sub(r"\\(.)", r"\1", value)
        parts = re.split(r"(%%|%\d*[A-Za-z])", name)
        found.append("".join("%" if p == "%%" else "*" if p.startswith("%") else escape(p) for p in parts))
    return found


def _text(lines: list[bytes]) -> list[str]:
    return [line.decode("utf-8", errors="replace") for line in lines]


def _tail(path: Path, count: int | None, whole_alone: bool = False) -> tuple[list[bytes], int]:
    """The last lines, and the position after them; `whole_alone` leaves out a last line that is still written."""
    with open_regular(path) as file:
        lines = deque(file, count)
        end = file.tell()
    if whole_alone and lines and not lines[-1].endswith(b"\n"):
        end -= len(lines.pop())
    shown = b"".join(lines).splitlines()  # a carriage return ends a line too
    return (shown if count is None else shown[max(0, len(shown) - count) :]), end


def _new_lines(path: Path, place: int) -> tuple[list[bytes], int]:
    """Whole lines from `place` on; a file that has become shorter is read anew."""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        place = 0 if size < place else place
        file.seek(place)
        content = file.read()
    whole = content.rfind(b"\n") + 1
    return content[:whole].splitlines(), place + whole


def _over(run: Path) -> bool:
    """Whether nothing more is to come: the run has ended, and no job of it waits or runs."""
    from launchers.slurm import jobs_of, own_jobs
    from pretrain.run import RunFolder

    try:
        if not RunFolder(run).read_status().is_over:
            return False
    except UserError:
        pass
    return not ((run / "slurm").is_dir() and jobs_of(run, own_jobs()[0]))
