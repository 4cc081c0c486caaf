"""Events and time use of a run: restarts, rollbacks, marks in the charts, time by activity, speeds, goodput."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pretrain.reporting.curve_charts import FloatArray, IntArray
from pretrain.run import JournalTable

_MARKS = {
    "skipped": "train/skipped",
    "spike": "train/spike",
    "checkpoint": "checkpoint/seconds",
    "failed save": "checkpoint/failed",
}


@dataclass(frozen=True)
class Start:
    """A start of the run: the number of steps before it, and its time in Unix seconds (None if not known)."""

    after_step: int
    time: float | None


@dataclass(frozen=True)
class Break:
    """A restart or a rollback.

    Attributes:
        kind: "restart", or "rollback" for one within a process after a loss spike.
        after_step: the step after which training resumed.
        reached: the last step before the break.
        time: time of the first step after the break, in Unix seconds.
        pause: seconds without a step before that.
        repeated: seconds that were spent on the steps which are repeated.
    """

    kind: str
    after_step: int
    reached: int
    time: float
    pause: float
    repeated: float


def breaks_of(measured: JournalTable, starts: Sequence[Start]) -> list[Break]:
    """Restarts and rollbacks, in order.

    A step number that does not grow marks a break. A restart that lost no step is known only from `starts`: all of
    them except the first are restarts.
    """
    lines = measured.trained
    steps, times = measured.steps[lines], measured.times[lines]
    seconds = measured.seconds[lines]
    gone = ~np.isin(lines, measured.kept)
    at = {*(np.flatnonzero(np.diff(steps) <= 0) + 1).tolist(), *_clean_restarts(steps, times, starts)}
    rollbacks = measured.columns.get("train/rollback_to", (np.zeros(0, np.int64), np.zeros(0)))[0]
    found = []
    for first in sorted(at):
        inside = (lines[first - 1] < rollbacks) & (rollbacks < lines[first])
        lost = np.flatnonzero(gone[:first] & (steps[:first] >= steps[first]))
        gone[lost] = False  # count them for this break only
        found.append(
            Break(
                kind="rollback" if inside.any() else "restart",
                after_step=int(steps[first]) - 1,
                reached=int(steps[first - 1]),
                time=float(times[first]),
                pause=max(0.0, float(times[first] - times[first - 1] - seconds[first])),
                repeated=float(seconds[lost].sum()),
            )
        )
    return found


def _clean_restarts(steps: IntArray, times: FloatArray, starts: Sequence[Start]) -> set[int]:
    """Indices of the first steps of starts that lost no step."""
    found = set()
    for start in starts:
        candidates = np.flatnonzero(steps == start.after_step + 1)
        candidates = candidates[candidates > 0]
        if start.after_step and start.time and len(candidates):
            found.add(int(candidates[np.abs(times[candidates] - start.time).argmin()]))
    return found


def marks_of(measured: JournalTable, breaks: Sequence[Break]) -> dict[str, list[dict[str, Any]]]:
    """Marks in the charts, by kind: the step, and for breaks all their attributes."""
    found = {kind: [{"step": step} for step in measured.series(name).steps.tolist()] for kind, name in _MARKS.items()}
    for kind in ("restart", "rollback"):
        found[kind] = [asdict(each) | {"step": each.after_step} for each in breaks if each.kind == kind]
    return found


def time_spent(measured: JournalTable, breaks: Sequence[Break], starts: Sequence[Start]) -> dict[str, float]:
    """Seconds by activity. Their sum is the time from the run's first start, or first step, to the last journal line.

    "training" is the time of steps without the wait for data; a repeated step counts once. "elsewhere" is the rest,
    such as the start of processes; it is at least 0, even if the clock was set back.
    """
    lines = measured.trained
    if not len(lines):
        return {}
    seconds, kept = measured.seconds, measured.kept
    waits = np.nan_to_num(measured.on_lines("speed/data_wait"))[kept] * seconds[kept]
    spent = {
        "training": float((seconds[kept] - waits).sum()),
        "waiting for data": float(waits.sum()),
        "evaluation": float(np.nansum(measured.on_lines("eval/seconds"))),
        "checkpoints": float(np.nansum(measured.on_lines("checkpoint/seconds"))),
        "repeated steps": float(seconds[lines].sum() - seconds[kept].sum()),
        "between starts": sum(each.pause for each in breaks),
    }
    begin = float(measured.times[lines[0]] - seconds[lines[0]])
    started = starts[0].time if starts and not starts[0].after_step else None
    spent["before the first step"] = max(0.0, begin - started) if started else 0.0
    wall = float(measured.times.max()) - begin + spent["before the first step"]
    return spent | {"elsewhere": max(0.0, wall - sum(spent.values()))}


def speeds(measured: JournalTable, spent: dict[str, float]) -> dict[str, float]:
    """Number of real tokens, real tokens a second while steps ran and over all time, and the share of padding.

    "goodput" is the share of all time since the run's first start that was spent on steps, without repeated ones.
    """
    kept, wall = measured.kept, sum(spent.values())
    seconds, tokens = measured.seconds[kept], measured.tokens[kept]
    if not len(kept) or not seconds.sum() or not tokens.sum():
        return {}
    found = {
        "tokens": float(tokens.sum()),
        "tokens_per_second": float(tokens.sum() / seconds.sum()),
        "tokens_per_second_overall": float(tokens.sum() / wall),
        "padding": float(1 - tokens.sum() / measured.slots[kept].sum()),
        "goodput": (spent["training"] + spent["waiting for data"]) / wall,
        "data_wait": spent["waiting for data"] / float(seconds.sum()),
    }
    mfu = measured.on_lines("speed/mfu")[kept]
    known = np.isfinite(mfu)
    return found | ({"mfu": float(np.average(mfu[known], weights=seconds[known] + 1e-9))} if known.any() else {})
