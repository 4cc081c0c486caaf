"""95% confidence intervals: Wilson score interval and paired bootstrap."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

RESAMPLES = 2000
LEAST = 20  # units; percentiles of fewer are far too narrow
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
    n, random = len(differences), np.random.default_rng(0)
    if n < LEAST:
        return None
    units = (random.integers(n, size=n) for _ in range(RESAMPLES))
    ratios = [differences[chosen].sum() / weights[chosen].sum() for chosen in units]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)
