"""Intervals by leaving out one group of positions after the other.

The delete-a-group jackknife (Kott, "The delete-a-group jackknife", Journal of Official Statistics 17, 2001). Unlike the
bootstrap it repeats no position, which would make two layers more alike than they are; and what positions of one row
have in common, it takes into account, since a row is in one group.
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
    """`value` is of all positions, `left_out` the same measure without each of the GROUPS groups."""
    spread = np.asarray(left_out, dtype=np.float64)
    assert len(spread) == GROUPS
    deviation = np.sqrt((GROUPS - 1) / GROUPS * np.sum((spread - spread.mean()) ** 2))
    return Estimate(value, float(value - _T * deviation), float(value + _T * deviation))
