"""The study's pictures, as PNG files: the curves of all arms, and how they differ from the baseline."""

from collections.abc import Sequence
from pathlib import Path

from data_prep.figures import new_figure, save_png
from launchers.study.curves import Curve
from launchers.study.results import Comparisons

_INK, _GREY = "#222222", "#8b95a5"
_COLOURS = ("#2266c8", "#d1600a", "#1d8348", "#7d3cb5", "#12808a", "#c0392b", "#b27700", "#8b95a5")
_LEGEND_COLUMNS = 5
_DASHES = ("-", "--", ":", "-.")


def draw_losses(curves: Sequence[Curve], arms: Sequence[str], path: Path, title: str) -> None:
    """Write a PNG: the held-out loss of each arm by step and by time, with a band from lowest to highest seed."""
    legend_rows = -(-len(arms) // _LEGEND_COLUMNS)
    figure = new_figure(11, 4.4 + 0.22 * legend_rows)
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    by_step.set_title(title, loc="left", color=_INK, fontweight="bold")
    for curve in curves:
        number = arms.index(curve.arm)
        colour, dashes = _COLOURS[number % len(_COLOURS)], _DASHES[number // len(_COLOURS) % len(_DASHES)]
        for axes, x in ((by_step, curve.steps), (by_time, 60 * curve.hours)):
            axes.plot(x, curve.losses.mean(axis=0), dashes, color=colour, linewidth=1.4, label=curve.arm)
            axes.fill_between(
                x, curve.losses.min(axis=0), curve.losses.max(axis=0), color=colour, alpha=0.15, linewidth=0
            )
    by_step.set_ylabel("held-out loss, 15% token masks (nats)")
    by_step.set_xlabel("step")
    by_time.set_xlabel("minutes of training")
    for axes in (by_step, by_time):
        axes.grid(color="#e5e5e5", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    if curves:
        handles, names = by_step.get_legend_handles_labels()
        figure.legend(
            handles, names, loc="outside lower center", ncols=_LEGEND_COLUMNS, frameon=False, fontsize="small"
        )
    save_png(figure, path)


def draw_differences(comparisons: Sequence[Comparisons], path: Path, title: str) -> None:
    """Write a PNG: for each metric, the difference of each arm from the baseline with its interval."""
    drawn = [one for one in comparisons if one.from_baseline]
    if not drawn:
        return
    rows = max(len(one.from_baseline) for one in drawn)
    figure = new_figure(2.2 + 3.4 * len(drawn), 1.4 + 0.34 * rows)
    figure.suptitle(title, x=0.01, ha="left", color=_INK, fontweight="bold", fontsize="large")
    for axes, one in zip(figure.subplots(1, len(drawn), sharey=True, squeeze=False)[0], drawn, strict=True):
        scale = 100 if one.metric.unit == "share" else 1
        for row, (arm, difference) in enumerate(one.from_baseline.items()):
            colour = _COLOURS[0] if difference.told_apart else _GREY
            low, high = difference.interval or (difference.mean, difference.mean)
            axes.plot([scale * low, scale * high], [arm, arm], color=colour, linewidth=1.6)
            axes.plot(scale * difference.mean, row, "o", color=colour, markersize=5)
        axes.axvline(0, color=_INK, linewidth=0.8)
        unit = "points" if one.metric.unit == "share" else one.metric.unit if one.metric.unit == "nats" else ""
        axes.set_xlabel(
            ", ".join(filter(None, [one.metric.title, unit, f"{one.metric.better} is better"])), fontsize="small"
        )
        axes.spines[["top", "right"]].set_visible(False)
        axes.invert_yaxis() if axes is figure.axes[0] else None
    save_png(figure, path)
