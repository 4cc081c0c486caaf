"""Interval of a mean over seeds."""

import math
from collections.abc import Sequence

from scipy import stats

_LEVEL = 0.95


def interval_of_seeds(scores: Sequence[float]) -> tuple[float, float] | None:
    """Student's t interval of the mean; None for one seed or equal scores, which do not show the variation."""
    error = float(stats.sem(scores)) if len(scores) > 1 else 0.0
    if not error > 0 or math.isnan(error):
        return None
    low, high = stats.t.interval(_LEVEL, len(scores) - 1, sum(scores) / len(scores), error)
    return float(low), float(high)
