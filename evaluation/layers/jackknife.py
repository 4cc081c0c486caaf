"""Delete-a-group jackknife intervals (Kott, "The delete-a-group jackknife", Journal of Official Statistics 17, 2001).

The bootstrap would repeat positions, which inflates the similarity of two layers; the jackknife does not. All positions
of a row are in one group, so correlation within rows is accounted for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

GROUPS = 10
_T = float(stdtrit(GROUPS - 1, 0.975))  # Student's t


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def estimate(value: float, left_out: Sequence[float]) -> Estimate:
    """Interval around `value`, the measure of all positions. left_out: the measure without each of GROUPS groups."""
    spread = np.asarray(left_out, dtype=np.float64)
    assert len(spread) == GROUPS
    deviation = np.sqrt((GROUPS - 1) / GROUPS * np.sum((spread - spread.mean()) ** 2))
    return Estimate(value, float(value - _T * deviation), float(value + _T * deviation))
