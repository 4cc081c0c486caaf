"""The journal of a run that was killed and resumed, line by line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pretrain.run import Entry

EXACT = ("train/loss", "train/grad_norm", "train/masked_accuracy", "train/learning_rate", "eval/loss")
_TAIL_BYTES = 8192


def last_step(journal: Path, since: float = 0.0) -> int:
    """The last training step with a whole line written after `since` (Unix seconds), or 0."""
    try:
        with open(journal, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    entries = [Entry.from_line(line) for line in lines if line.endswith(b"\n")]
    return max((entry.step for entry in entries if entry and entry.batch and entry.time >= since), default=0)


def read_lines(journal: Path) -> list[Entry]:
    """Every line that is whole, repeated steps included."""
    if not journal.exists():
        return []
    lines = journal.read_bytes().splitlines(keepends=True)
    entries = [Entry.from_line(line) for line in lines if line.endswith(b"\n")]
    assert None not in entries, f"{journal} has an invalid line"
    return [entry for entry in entries if entry]


def results(entries: Iterable[Entry]) -> dict[tuple[int, str], Any]:
    """Values by (step, name) that interruptions must not change by a bit."""
    found: dict[tuple[int, str], Any] = {}
    for entry in entries:
        values: dict[str, Any] = {name: entry.metrics[name] for name in EXACT if name in entry.metrics}
        for name, value in (values | ({"batch": entry.batch} if entry.batch else {})).items():
            assert found.setdefault((entry.step, name), value) == value, f"step {entry.step} has two values of {name}"
    return found
