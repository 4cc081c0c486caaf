"""Charts of the HTML page, thinned to a number of points that any browser can draw."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pretrain.run import JournalTable
from pretrain.run.journal_table import Floats, Series, smooth, thinned

BUCKETS = 800
_SHORTEST_WINDOW = 9  # steps: the loss of a single batch is noisy


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart. style: "raw" (faint), "smooth" (strong), "points" (with dots) or "line"."""

    metric: str
    label: str
    style: str


@dataclass(frozen=True)
class Chart:
    """A chart of lines on one axis. unit: the format of the values. log: whether the axis is logarithmic at first."""

    title: str
    unit: str
    lines: tuple[ChartLine, ...]
    log: bool = False


def _averaged(title: str, unit: str, metric: str, log: bool = False) -> Chart:
    return Chart(title, unit, (ChartLine(metric, "each step", "raw"), ChartLine(metric, "average", "smooth")), log)


CHARTS = (
    Chart(
        "Loss",
        "nats",
        (
            ChartLine("train/loss", "training, each step", "raw"),
            ChartLine("train/loss", "training, average", "smooth"),
            ChartLine("eval/loss", "held-out", "points"),
            ChartLine("eval/ema_loss", "held-out, averaged weights", "points"),
        ),
    ),
    Chart(
        "Masked accuracy",
        "share",
        (
            ChartLine("train/masked_accuracy", "training, each step", "raw"),
            ChartLine("train/masked_accuracy", "training, average", "smooth"),
            ChartLine("eval/masked_accuracy", "held-out", "points"),
        ),
    ),
    Chart("Learning rate", "number", (ChartLine("train/learning_rate", "learning rate", "line"),)),
    _averaged("Gradient norm", "number", "train/grad_norm", log=True),
    _averaged("Real tokens a second", "count", "speed/tokens_per_second"),
    _averaged("Model FLOPs utilization", "share", "speed/mfu"),
    _averaged("Waiting for data", "share", "speed/data_wait"),
    Chart("Mask rate", "share", (ChartLine("train/mask_rate", "mask rate", "line"),)),
    Chart("Sequence length", "count", (ChartLine("data/seq_len", "slots of a row", "line"),)),
)
_ONLY_IF_IT_CHANGES = ("train/mask_rate", "data/seq_len")


def charts_of(measured: JournalTable) -> list[dict[str, Any]]:
    """The charts of the measured metrics, as JSON values."""
    found = []
    for chart in CHARTS:
        lines = [made for line in chart.lines if (made := _line(measured, line))]
        if lines:
            found.append({"title": chart.title, "unit": chart.unit, "log": chart.log, "lines": lines})
    return found


def _line(measured: JournalTable, line: ChartLine) -> dict[str, Any] | None:
    series = measured.series(line.metric)
    if not np.isfinite(series.values).any():
        return None
    if line.metric in _ONLY_IF_IT_CHANGES and np.ptp(series.values[np.isfinite(series.values)]) == 0:
        return None
    if line.style == "smooth":
        if len(series.steps) < 20:
            return None
        series = Series(series.steps, averaged(series.values))
    return line_of(line.label, line.style, thinned(*series, BUCKETS))


def line_of(label: str, style: str, points: Series, **more: Any) -> dict[str, Any]:
    """A line as JSON values. more: further keys that chart.js reads, such as low and high of a band."""
    return {"label": label, "style": style, "x": points.steps.tolist(), "y": rounded(points.values)} | more


def averaged(values: Floats) -> Floats:
    """Moving average of a noisy metric, over a fiftieth of all steps. Curves and numbers of the page use it."""
    return smooth(values, max(_SHORTEST_WINDOW, len(values) // 50))


def axes_of(measured: JournalTable) -> dict[str, list[float]]:
    """Real tokens and hours of training up to some of the steps, from 0 on. Repeated steps count once."""
    kept = measured.kept
    steps = measured.steps[kept]
    tokens, seconds = np.cumsum(measured.tokens[kept]), np.cumsum(measured.seconds[kept])
    if not len(kept) or not tokens[-1] or not seconds[-1]:
        return {}
    some = np.unique(np.linspace(0, len(kept) - 1, BUCKETS).astype(int))
    begin = max(0, int(steps[0]) - 1)
    return {
        "step": [begin, *steps[some].tolist()],
        "tokens": [0, *np.round(tokens[some]).tolist()],
        "hours": [0, *rounded(seconds[some] / 3600)],
    }


def rounded(values: Floats) -> list[float]:
    """Values rounded to five significant digits, more than a screen shows."""
    return [float(f"{value:.5g}") for value in values.tolist()]
