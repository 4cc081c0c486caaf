"""Means over seeds and Student's t intervals."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

ALPHA = 0.05
ROUNDING = 1e-9  # relative to the values: a smaller deviation is rounding error


def moments(values: Sequence[float], scale: float) -> tuple[int, float, float | None]:
    """n, mean, and standard deviation; a deviation within rounding error of this scale becomes 0."""
    n, mean = len(values), float(np.mean(values))
    if n == 1:
        return n, mean, None
    sd = float(np.std(values, ddof=1))
    return n, mean, sd if sd > ROUNDING * scale else 0.0


def t_interval(n: int, mean: float, sd: float | None, alpha: float = ALPHA) -> tuple[float, float] | None:
    """Two-sided Student's t interval of a mean at the level 1 - alpha; None without a deviation."""
    if not sd:
        return None
    half = -float(stdtrit(n - 1, alpha / 2)) * sd / math.sqrt(n)
    return mean - half, mean + half


def interval_of_seeds(scores: Sequence[float]) -> tuple[float, float] | None:
    """Interval of the mean; None for one seed or equal scores, which do not show the variation."""
    return t_interval(*moments(scores, max(map(abs, scores))))
