"""Charts of the HTML page: curves, smoothed, and thinned to a number of points that any browser can draw."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pretrain.run import JournalTable

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_Item = TypeVar("_Item")

BUCKETS = 800
_SHORTEST_WINDOW = 9  # steps: the loss of a single batch is noisy

_EACH, _AVERAGE = ("each step", "raw"), ("moving average", "smooth")  # label and style: faint, or strong
_HELD_OUT = ("held-out", "points")  # with dots
_CHARTS: tuple[tuple[str, str, tuple[tuple[str, str, str], ...]], ...] = (  # title, unit, (metric, label, style)
    (
        "Loss",
        "nats",
        (
            ("train/loss", "training, each step", "raw"),
            ("train/loss", "training, moving average", "smooth"),
            ("eval/loss", *_HELD_OUT),
            ("eval/ema_loss", "held-out, averaged weights", "points"),
        ),
    ),
    (
        "Masked accuracy",
        "share",
        (
            ("train/masked_accuracy", "training, each step", "raw"),
            ("train/masked_accuracy", "training, moving average", "smooth"),
            ("eval/masked_accuracy", *_HELD_OUT),
        ),
    ),
    ("Learning rate", "number", (("train/learning_rate", "learning rate", "line"),)),
    ("Gradient norm", "number", (("train/grad_norm", *_EACH), ("train/grad_norm", *_AVERAGE))),
    ("Real tokens a second", "count", (("speed/tokens_per_second", *_EACH), ("speed/tokens_per_second", *_AVERAGE))),
    ("Model FLOPs utilization", "share", (("speed/mfu", *_EACH), ("speed/mfu", *_AVERAGE))),
    ("Waiting for data", "share", (("speed/data_wait", *_EACH), ("speed/data_wait", *_AVERAGE))),
    ("Mask rate", "share", (("train/mask_rate", "mask rate", "line"),)),
    ("Sequence length", "count", (("data/seq_len", "slots of a row", "line"),)),
)
_LOGARITHMIC = ("Gradient norm",)  # at first
_ONLY_IF_IT_CHANGES = ("train/mask_rate", "data/seq_len")


def charts_of(measured: JournalTable) -> list[dict[str, Any]]:
    """The charts of the measured metrics, as JSON values. unit: the format of the values."""
    charts = []
    for title, unit, specs in (*_CHARTS, *_of_objectives(measured)):
        lines = [line for spec in specs if (line := _line(measured, *spec))]
        if lines:
            charts.append({"title": title, "unit": unit, "log": title in _LOGARITHMIC, "lines": lines})
    return charts


def _of_objectives(measured: JournalTable) -> Iterator[tuple[str, str, tuple[tuple[str, str, str], ...]]]:
    """A chart of the loss of each objective of a mixture."""
    for metric in measured.columns:
        if metric.startswith("train/loss/"):
            name = metric.removeprefix("train/loss/")
            lines = ((metric, *_EACH), (metric, *_AVERAGE), (f"eval/loss/{name}", *_HELD_OUT))
            yield f"Loss of objective {name}", "nats", lines


def _line(measured: JournalTable, metric: str, label: str, style: str) -> dict[str, Any] | None:
    steps, values = measured.series(metric)
    finite = values[np.isfinite(values)]
    if not len(finite) or (metric in _ONLY_IF_IT_CHANGES and np.ptp(finite) == 0):
        return None
    if style == "smooth":
        if len(steps) < 20:
            return None
        values = averaged(values)
    return line_of(label, style, *thinned(steps, values, BUCKETS))


def line_of(label: str, style: str, steps: IntArray, values: FloatArray, **more: Any) -> dict[str, Any]:
    """A line as JSON values. more: further keys that chart.js reads, such as low and high of a band."""
    return {"label": label, "style": style, "x": _as_list(steps), "y": _as_list(values)} | {
        key: _as_list(value) for key, value in more.items()
    }


def averaged(values: FloatArray) -> FloatArray:
    """Moving average of a noisy metric, over a fiftieth of all steps. Curves and numbers of the page use it."""
    return smooth(values, max(_SHORTEST_WINDOW, len(values) // 50))


def smooth(values: FloatArray, window: int) -> FloatArray:
    """Centred moving mean, [n] -> [n] float64; near the ends, and around values that are not finite, over fewer."""
    finite = np.isfinite(values)
    window = max(1, min(window | 1, len(values) - 1 | 1))  # odd, and no longer than the data
    total = moving_sum(np.where(finite, values, 0.0), window)
    count = moving_sum(finite.astype(np.float64), window)
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)


def moving_sum(values: FloatArray, window: int) -> FloatArray:
    """The sum over the `window` (odd) values around each.

    Of two pieces, each summed within a block as long as the window: one running sum over all values would lose, after a
    huge one, all digits of the others.
    """
    n = len(values)
    padded = np.zeros(-(-(n + window - 1) // window) * window)
    padded[window // 2 : window // 2 + n] = values
    blocks = padded.reshape(-1, window)
    from_left = blocks.cumsum(axis=1).reshape(-1)
    from_right = blocks[:, ::-1].cumsum(axis=1)[:, ::-1].reshape(-1)
    first = np.arange(n)
    return from_left[first + window - 1] + np.where(first % window == 0, 0.0, from_right[first])


def thinned(steps: IntArray, values: FloatArray, buckets: int) -> tuple[IntArray, FloatArray]:
    """At most 2 * `buckets` + 2 points: the first, the last, and the least and greatest value of each bucket of equally
    many, so that no peak is lost. Values that are not finite are left out."""
    finite = np.isfinite(values)
    steps, values = steps[finite], values[finite]
    n = len(values)
    if n <= 2 * buckets:
        return steps, values
    bounds = np.linspace(0, n, buckets + 1).astype(np.int64)
    chosen = {0, n - 1}
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        part = values[start:end]
        chosen |= {start + int(part.argmin()), start + int(part.argmax())}
    index = np.array(sorted(chosen))
    return steps[index], values[index]


def evenly(items: Sequence[_Item], most: int) -> list[_Item]:
    """The items, or `most` of them, evenly spaced, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, most).astype(int)]


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
        "hours": [0, *_as_list(seconds[some] / 3600)],
    }


def rounded(value: float) -> float:
    """Seven significant digits, more than the page shows. All its figures are rounded here, then once on the page."""
    return float(f"{value:.7g}")


def _as_list(value: Any) -> Any:
    """Arrays as lists of rounded values."""
    if not isinstance(value, np.ndarray):
        return value
    return list(map(rounded, value.tolist())) if value.dtype.kind == "f" else value.tolist()
