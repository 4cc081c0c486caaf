"""Held-out loss of each arm over training: mean over seeds, with a band from minimum to maximum."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.study.study_file import Budget, Study, child_at
from pretrain.reporting import COLOURS, Line, Panel, draw_panels
from pretrain.reporting.curve_charts import line_of, rounded
from pretrain.run import JournalTable, read_measured
from pretrain.run.journal_table import Floats, Ints, Series

_DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Curve:
    """The E evaluations that all S seeds of an arm share.

    steps [E] int64; tokens, hours [E] float64: of training so far, means over seeds; losses [S, E] float64, in nats.
    """

    arm: str
    steps: Ints
    tokens: Floats
    hours: Floats
    losses: Floats


def read_curves(folder: Path, study: Study, budget: Budget) -> list[Curve]:
    """Curves of all arms with at least one evaluation; unfinished runs count too."""
    found = []
    for arm in study.arms:
        journals = [
            child_at(study, budget, arm, seed).run(folder) / "journal.jsonl" for seed in range(1, study.seeds + 1)
        ]
        runs = [read_measured(path) for path in journals if path.exists()]
        if curve := curve_of(arm.name, runs):
            found.append(curve)
    return found


def curve_of(arm: str, runs: list[JournalTable]) -> Curve | None:
    """Curve of an arm from its runs with evaluations; None if no run has one."""
    evaluated = [(run, run.series("eval/loss")) for run in runs]
    evaluated = [(run, series) for run, series in evaluated if np.isfinite(series.values).any()]
    if not evaluated:
        return None
    steps = evaluated[0][1].steps
    for _, series in evaluated[1:]:
        steps = np.intersect1d(steps, series.steps)
    losses = np.array([series.values[np.isin(series.steps, steps)] for _, series in evaluated])
    tokens, hours = np.mean([_progress(run, steps) for run, _ in evaluated], axis=0)
    return Curve(arm, steps, tokens, hours, losses)


def _progress(run: JournalTable, steps: Ints) -> tuple[Floats, Floats]:
    """Tokens and hours of training up to each step; repeated steps count once."""
    kept = run.kept
    at = np.searchsorted(run.steps[kept], steps, side="right")
    tokens, seconds = (np.concatenate([[0.0], np.cumsum(values[kept])]) for values in (run.tokens, run.seconds))
    return tokens[at], seconds[at] / 3600


def draw_losses(curves: list[Curve], arms: list[str], path: Path, title: str) -> None:
    """Write a PNG: the held-out loss of each arm by step and by time, with a band from lowest to highest seed."""
    by_step = [_png_line(curve, curve.steps, arms.index(curve.arm)) for curve in curves]
    by_time = [_png_line(curve, 60 * curve.hours, arms.index(curve.arm)) for curve in curves]
    left = Panel(by_step, title, axes={"xlabel": "step", "ylabel": "held-out loss, 15% token masks (nats)"})
    right = Panel(by_time, axes={"xlabel": "minutes of training"})
    draw_panels([[left, right]], path, (11, 4.4), legend_columns=5, sharey=True)


def _png_line(curve: Curve, x: Ints | Floats, number: int) -> Line:
    band = curve.losses.min(axis=0), curve.losses.max(axis=0)
    style = _DASHES[number // len(COLOURS) % len(_DASHES)]
    colour = COLOURS[number % len(COLOURS)]
    return Line(x, curve.losses.mean(axis=0), colour, curve.arm, style, band=band)


def chart(title: str, curves: list[Curve], arms: list[str]) -> dict[str, Any]:
    """Chart of the page: one line per arm; the colour depends on its index in `arms`."""
    return {"title": title, "unit": "nats", "log": False, "lines": [_line(one, arms.index(one.arm)) for one in curves]}


def _line(curve: Curve, hue: int) -> dict[str, Any]:
    return line_of(
        curve.arm,
        "points",
        Series(curve.steps, curve.losses.mean(axis=0)),
        hue=hue,
        low=rounded(curve.losses.min(axis=0)),
        high=rounded(curve.losses.max(axis=0)),
        axes={"step": curve.steps.tolist(), "tokens": rounded(curve.tokens), "hours": rounded(curve.hours)},
    )
