"""Statistical tests with fixed seeds: each rejects a correct result with a probability of at most about 1e-6.

The bounds hold for samples of any size, or for the normal distribution that large ones have.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import rel_entr

FALSE_ALARM = 1e-6


def check_shares(hits: ArrayLike, trials: ArrayLike, shares: ArrayLike) -> None:
    """Hits among independent trials with the given chance; arrays hold many such counts.

    Chernoff's bound: on either side, a share is met that is as far off with a chance of exp(-trials * D) at most, D
    being the relative entropy of what is seen to what is right. It is exact of binomial counts, however small.
    """
    hits, trials, shares = (np.asarray(values, dtype=np.float64) for values in (hits, trials, shares))
    hits, trials, shares = np.broadcast_arrays(hits, trials, shares)
    assert (trials > 0).all(), "nothing was tried"
    seen = hits / trials
    surprise = trials * (rel_entr(seen, shares) + rel_entr(1 - seen, 1 - shares))
    worst = np.unravel_index(np.argmax(surprise), surprise.shape)
    said = f"at {[int(i) for i in worst]}: {hits[worst]:.0f} of {trials[worst]:.0f}, where {shares[worst]:.6f} is right"
    assert surprise[worst] <= np.log(2 * surprise.size / FALSE_ALARM), said


def check_means(values: ArrayLike, expected: ArrayLike) -> None:
    """Means of many independent values [N] or [N, M], by the normal distribution."""
    values = np.asarray(values, dtype=np.float64)
    off = np.abs(values.mean(axis=0) - expected)
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    beyond = np.sqrt(2 * np.log(2 * off.size / FALSE_ALARM))
    assert (off <= beyond * error + 1e-12).all(), f"off by {np.max(off / error):.1f} standard errors"
