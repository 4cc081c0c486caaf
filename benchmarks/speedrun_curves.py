"""Held-out losses over tokens and seconds: when a target is reached, how long a run should be, tables and a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pretrain.reporting.png_charts import new_figure, save_png

STEP = 1.25  # between lengths of runs that are tried


@dataclass(frozen=True)
class Point:
    """After so many slots and seconds of training, evaluation left out: the held-out loss in nats."""

    tokens: float
    seconds: float
    loss: float


@dataclass(frozen=True)
class Curve:
    """A run: its points in order."""

    name: str
    points: tuple[Point, ...]

    @property
    def end(self) -> Point:
        return self.points[-1]

    def reaches(self, target: float) -> Point | None:
        """Where the loss first is `target` or less, on straight lines between the points; None if nowhere."""
        for before, point in zip((None, *self.points), self.points, strict=False):
            if point.loss > target:
                continue
            if before is None:
                return point
            share = (before.loss - target) / (before.loss - point.loss)
            tokens = before.tokens + share * (point.tokens - before.tokens)
            return Point(tokens, before.seconds + share * (point.seconds - before.seconds), target)
        return None


def next_rung(reached: Mapping[int, bool], tries: int) -> int | None:
    """Which length, as a power of STEP, to try next, so that the shortest that reaches the target is found.

    Args:
        reached: whether those tried did; none at first.
        tries: how many may be tried in all.
    """
    if not reached:
        return 0
    good, bad = [rung for rung, yes in reached.items() if yes], [rung for rung, yes in reached.items() if not yes]
    if len(reached) == tries or (good and bad and min(good) - max(bad) == 1):
        return None
    return min(good) - 1 if good else max(bad) + 1


def best(curves: Sequence[Curve], target: float) -> Curve | None:
    """The curve that reaches the target in the fewest seconds."""
    found = [(point.seconds, number) for number, curve in enumerate(curves) if (point := curve.reaches(target))]
    return curves[min(found)[1]] if found else None


def row(curve: Curve, target: float, usual: Point) -> list[str]:
    """A line of the table: what a run took to reach the target, and how many times less than the usual one."""
    end = f"{curve.end.loss:.3f} after {curve.end.tokens / 1e6:.2f} M, {curve.end.seconds:,.0f} s"
    if (point := curve.reaches(target)) is None:
        return [curve.name, "not reached", "not reached", "", end]
    times = f"{usual.seconds / point.seconds:.2f}"
    return [curve.name, f"{point.tokens / 1e6:.2f} M", f"{point.seconds:,.0f}", times, end]


def draw(curves: Sequence[Curve], target: float, path: Path, title: str) -> None:
    """Write a PNG: loss against seconds, and against tokens, of each curve."""
    figure = new_figure(11, 5)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name, unit in zip(panels, ("seconds", "tokens"), (1.0, 1e6), strict=True):
        for number, curve in enumerate(curves):
            xs = [getattr(point, name) / unit for point in curve.points]
            strong = number < 2
            axes.plot(
                xs,
                [point.loss for point in curve.points],
                "o-" if strong else "-" if number < 10 else "--",  # there are ten colours
                markersize=3.5,
                linewidth=2.0 if strong else 0.9,
                label=curve.name,
            )
        axes.axhline(target, color="#777777", linewidth=0.8, linestyle="--")
        axes.set_xlabel("seconds of training" if name == "seconds" else "million tokens")
        axes.grid(color="#e5e5e5", linewidth=0.8)
        axes.set_axisbelow(True)
    panels[0].set_ylabel("held-out loss, nats")
    panels[1].legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_png(figure, path)
