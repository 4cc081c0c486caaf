"""Held-out losses by tokens and seconds: when a run reaches a target, lengths to try, a table row and a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.charts import chart

STEP = 1.25  # ratio of consecutive lengths


@dataclass(frozen=True)
class Point:
    """Held-out loss in nats after a number of slots and seconds of training."""

    tokens: float
    seconds: float
    loss: float


@dataclass(frozen=True)
class Curve:
    """A run and its points in order."""

    name: str
    points: tuple[Point, ...]

    @property
    def end(self) -> Point:
        return self.points[-1]

    def reaches(self, target: float) -> Point | None:
        """The first point with a loss of at most `target`, by linear interpolation, or None."""
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
    """The next length to try, as a power of STEP, to find the shortest that reaches the target; None at the end.

    Args:
        reached: for each length tried, whether it reached the target.
        tries: the largest number of trials.
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
    """A row of the table: tokens and time to the target, and the speed relative to the usual recipe."""
    end = f"{curve.end.loss:.3f} after {curve.end.tokens / 1e6:.2f} M, {curve.end.seconds:,.0f} s"
    if (point := curve.reaches(target)) is None:
        return [curve.name, "not reached", "not reached", "", end]
    times = f"{usual.seconds / point.seconds:.2f}"
    return [curve.name, f"{point.tokens / 1e6:.2f} M", f"{point.seconds:,.0f}", times, end]


def draw(curves: Sequence[Curve], target: float, path: Path, title: str) -> None:
    """Write a PNG: loss against seconds, and against tokens, of each curve."""
    with chart(path, 11, 5) as figure:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, name, unit in zip(panels, ("seconds", "tokens"), (1.0, 1e6), strict=True):
            for number, curve in enumerate(curves):
                xs, ys = [getattr(point, name) / unit for point in curve.points], [one.loss for one in curve.points]
                strong = number < 2
                line = "o-" if strong else "-" if number < 10 else "--"  # there are ten colours
                axes.plot(xs, ys, line, markersize=3.5, linewidth=2.0 if strong else 0.9, label=curve.name)
            axes.axhline(target, color="#777777", linewidth=0.8, linestyle="--")
            axes.set_xlabel("seconds of training" if name == "seconds" else "million tokens")
        panels[0].set_ylabel("held-out loss, nats")
        panels[1].legend()
