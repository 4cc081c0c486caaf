"""Points of a curve: smooth them, and choose so few that a browser can draw them."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_Item = TypeVar("_Item")


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
