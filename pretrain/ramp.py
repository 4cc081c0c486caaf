"""Ranges of numbers, end to end."""

import numpy as np
from numpy.typing import NDArray


def ramp(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """starts[0], starts[0] + 1, ... (lengths[0] of them), starts[1], ...: int64 [sum of lengths], each at least 1."""
    steps = np.ones(int(lengths.sum()), dtype=np.int64)
    if len(steps):
        steps[0] = starts[0]
        steps[np.cumsum(lengths[:-1])] = starts[1:] - starts[:-1] - lengths[:-1] + 1
    return np.cumsum(steps, out=steps)
