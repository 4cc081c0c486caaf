"""The loss curve of a run as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data_prep.files import atomic_writer
from pretrain.journal import Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _BLUE, _ORANGE, _GREEN, _GREY = "#222222", "#1f6fb4", "#d9660d", "#2a8a4a", "#777777"


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving mean, [n] -> [n] float64; near the ends, and around values that are not finite, over fewer."""
    finite = np.isfinite(values)
    window = min(window | 1, len(values) - 1 | 1)  # odd, and no longer than the data, so that "same" keeps the length
    kernel = np.ones(window)
    total = np.convolve(np.where(finite, values, 0.0), kernel, mode="same")
    count = np.convolve(finite.astype(float), kernel, mode="same")
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)


def draw_curve(entries: list[Entry], path: Path, title: str, reference: dict[str, float] | None = None) -> None:
    """Write a PNG: training loss (raw and smoothed), evaluation loss, and below them learning rate and tokens/s.

    `entries` are in order of step; `reference` are labelled horizontal lines in the loss panel, in nats. What was not
    measured is not drawn.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    loss, speed = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    loss.set_title(title, loc="left", color=_INK, fontweight="bold")
    _draw_loss(loss, entries, reference or {})
    _draw_rate_and_speed(speed, entries)
    for axes in (loss, speed):
        axes.grid(color="#e5e5e5", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines["top"].set_visible(False)
    loss.spines["right"].set_visible(False)
    speed.set_xlabel("step")
    with atomic_writer(path) as file:
        figure.savefig(file, format="png")


def _draw_loss(axes: "Axes", entries: list[Entry], reference: dict[str, float]) -> None:
    steps, values = _series(entries, "train/loss")
    if len(steps):
        axes.plot(steps, values, color=_BLUE, alpha=0.25, linewidth=0.8)
        axes.plot(steps, smooth(values, len(values) // 50), color=_BLUE, linewidth=1.8, label="training loss")
    steps, values = _series(entries, "eval/loss")
    if len(steps):
        axes.plot(steps, values, "o-", color=_ORANGE, markersize=4.5, linewidth=1.0, label="held-out loss")
        axes.annotate(f"{values[-1]:.3f}", (steps[-1], values[-1]), (0, 7), textcoords="offset points", ha="center")
    for name, value in reference.items():
        axes.axhline(value, color=_GREY, linewidth=1.0, linestyle=(0, (5, 3)))
        place = axes.get_yaxis_transform()  # x from 0 to 1 across the panel, y in nats
        axes.annotate(f"{name} {value:.2f}", (1, value), (-4, 3), place, "offset points", ha="right", color=_GREY)
    axes.set_ylabel("cross-entropy of masked tokens (nats)")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="upper right")


def _draw_rate_and_speed(axes: "Axes", entries: list[Entry]) -> None:
    steps, values = _series(entries, "train/learning_rate")
    axes.plot(steps, values, color=_GREEN, linewidth=1.5)
    axes.set_ylabel("learning rate", color=_GREEN)
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    steps, values = _series(entries, "speed/tokens_per_second")
    right = axes.twinx()
    right.plot(steps, values / 1000, color=_GREY, alpha=0.7, linewidth=0.9)
    right.set_ylabel("thousand tokens/s", color=_GREY)
    right.margins(y=0.15)
    right.set_ylim(bottom=0)
    right.spines["top"].set_visible(False)


def _series(entries: list[Entry], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps [n], values [n]) of one metric."""
    points = [(entry.step, entry.metrics[name]) for entry in entries if name in entry.metrics]
    steps, values = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return steps, values
