"""The loss curve of a run as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.figures import new_figure, save_png
from pretrain.measured import Measured, smooth, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _BLUE, _ORANGE, _GREEN, _GREY = "#222222", "#1f6fb4", "#d9660d", "#2a8a4a", "#777777"
_BUCKETS = 1000  # more points could not be told apart


def draw_curve(measured: Measured, path: Path, title: str, reference: dict[str, float] | None = None) -> None:
    """Write a PNG: training loss (raw and smoothed), evaluation loss, and below them learning rate and tokens/s.

    `reference` are labelled horizontal lines in the loss panel, in nats. What was not measured is not drawn.
    """
    figure = new_figure(9, 6.2)
    loss, speed = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    loss.set_title(title, loc="left", color=_INK, fontweight="bold")
    _draw_loss(loss, measured, reference or {})
    _draw_rate_and_speed(speed, measured)
    for axes in (loss, speed):
        axes.grid(color="#e5e5e5", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines["top"].set_visible(False)
    loss.spines["right"].set_visible(False)
    speed.set_xlabel("step")
    save_png(figure, path)


def _draw_loss(axes: "Axes", measured: Measured, reference: dict[str, float]) -> None:
    steps, values = measured.series("train/loss")
    if len(steps):
        axes.plot(*thinned(steps, values, _BUCKETS), color=_BLUE, alpha=0.25, linewidth=0.8)
        average = thinned(steps, smooth(values, len(values) // 50), _BUCKETS)
        axes.plot(*average, color=_BLUE, linewidth=1.8, label="training loss")
    steps, values = measured.series("eval/loss")
    if len(steps):
        axes.plot(steps, values, "o-", color=_ORANGE, markersize=4.5, linewidth=1.0, label="held-out loss")
        axes.annotate(f"{values[-1]:.3f}", (steps[-1], values[-1]), (0, 7), textcoords="offset points", ha="center")
    steps, values = measured.series("eval/ema_loss")
    if len(steps):
        axes.plot(steps, values, "-", color=_GREEN, linewidth=1.2, label="held-out loss of averaged weights")
    for name, value in reference.items():
        axes.axhline(value, color=_GREY, linewidth=1.0, linestyle=(0, (5, 3)))
        place = axes.get_yaxis_transform()  # x from 0 to 1 across the panel, y in nats
        axes.annotate(f"{name} {value:.2f}", (1, value), (-4, 3), place, "offset points", ha="right", color=_GREY)
    axes.set_ylabel("cross-entropy of masked tokens (nats)")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="upper right")


def _draw_rate_and_speed(axes: "Axes", measured: Measured) -> None:
    steps, values = measured.series("train/learning_rate")
    axes.plot(*thinned(steps, values, _BUCKETS), color=_GREEN, linewidth=1.5)
    axes.set_ylabel("learning rate", color=_GREEN)
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    steps, values = measured.series("speed/tokens_per_second")
    right = axes.twinx()
    right.plot(*thinned(steps, values / 1000, _BUCKETS), color=_GREY, alpha=0.7, linewidth=0.9)
    right.set_ylabel("thousand tokens/s", color=_GREY)
    right.margins(y=0.15)
    right.set_ylim(bottom=0)
    right.spines["top"].set_visible(False)
