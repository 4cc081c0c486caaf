"""Quotas of many sources: whole numbers in proportion to their weights, in each period and exactly in a cycle."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError

FEW = 256
CYCLE = 4096
_TURN = 2531  # odd, and near CYCLE / 1.618: after any number of periods, the offsets are spread evenly


@dataclass(frozen=True)
class Quotas:
    """Items of each source in a cycle of periods: int64 [sources].

    A period of the same length has each source's share to within about an item. Few sources have a cycle of one period.
    """

    rows: NDArray[np.int64]
    periods: int

    @classmethod
    def of(cls, weights: Sequence[float] | NDArray[np.float64], period: int, several: bool = False) -> "Quotas":
        """The quotas in proportion to weights, by largest-remainder rounding.

        A weight of 0 has no items, another has at least one in a cycle.

        Args:
            period: items of a period. several: whether a cycle has several periods also for at most FEW sources.

        Raises UserError for more sources than a cycle has items.
        """
        sources = np.count_nonzero(weights)
        periods = CYCLE if several or sources > FEW else 1
        total = period * periods
        if sources > total:
            raise UserError(f"{sources} sources of data.train cannot share {total} places; name fewer")
        shares = np.asarray(weights, dtype=np.float64) / sum(weights) * total
        rows = np.maximum(np.floor(shares).astype(np.int64), shares > 0)
        if (left := total - int(rows.sum())) > 0:
            rows[np.argsort(np.where(shares > 0, rows - shares, np.inf), kind="stable")[:left]] += 1
        while (excess := int(rows.sum()) - total) > 0:  # the largest errors are within 1 of each other: take turns
            larger = rows > 1
            if turns := min(excess // np.count_nonzero(larger), rows[larger].min() - 1):
                rows[larger] -= turns
            else:
                rows[np.argsort(np.where(larger, shares - rows, np.inf), kind="stable")[:excess]] -= 1
        return cls(rows, periods)

    def before(self, number: int) -> NDArray[np.int64]:
        """Items of each source in the periods 0 .. number - 1.

        Systematic sampling: a period ends source s at (rows[0] + ... + rows[s] + offset) // periods. The offset takes
        each value below `periods` once in a cycle, so the periods of a cycle add up to `rows`.
        """
        cycles, periods = divmod(number, self.periods)
        offsets = np.sort(np.arange(periods) * _TURN % self.periods)
        whole, rest = divmod(np.cumsum(self.rows), self.periods)
        carried = periods - np.searchsorted(offsets, self.periods - rest)
        return np.diff(cycles * np.cumsum(self.rows) + periods * whole + carried, prepend=0)
