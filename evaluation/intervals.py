"""95% confidence intervals: Wilson score interval and paired bootstrap."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from pretrain.philox import derive_key, draw

RESAMPLES = 2000
LEAST = 20  # units; percentiles of fewer are far too narrow
_BLOCK = 1 << 22  # draws per block
_Z = float(ndtri(0.975))


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Interval of a share (Wilson, "Probable inference, the law of succession, and statistical inference", 1927)."""
    share, z2 = successes / n, _Z**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def paired_bootstrap(differences: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[float, float] | None:
    """Percentile bootstrap interval of sum(differences) / sum(weights), from RESAMPLES resamples of the n units.

    Returns None for fewer than LEAST units. Units must be independent: merge related ones into one unit.
    Every call with the same n uses the same resamples. Source: Efron and Tibshirani, "An Introduction to the
    Bootstrap", 1993, chapter 13.
    """
    n, key = len(differences), derive_key(0, "bootstrap")
    if n < LEAST:
        return None
    ratios, together = [], max(1, _BLOCK // n)
    for first in range(0, RESAMPLES, together):
        count = min(together, RESAMPLES - first)
        units = (draw(key, count * n, first, 0, 0) >> np.uint64(32)) * np.uint64(n) >> np.uint64(32)
        chosen = units.astype(np.int64).reshape(count, n)
        ratios.append(differences[chosen].sum(axis=1) / weights[chosen].sum(axis=1))
    low, high = np.percentile(np.concatenate(ratios), [2.5, 97.5])
    return float(low), float(high)
