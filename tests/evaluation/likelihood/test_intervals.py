"""Intervals: against published figures and the normal approximation, and their resampled units."""

import math

import numpy as np
import pytest

from evaluation.likelihood.evaluate_models import LEAST, paired_bootstrap
from evaluation.likelihood.minimal_pairs import MinimalPair, units, wilson


def test_the_interval_of_a_share():
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)  # Newcombe, Statistics in Medicine 17, 1998
    assert wilson(0, 10)[0] == 0


@pytest.mark.parametrize("equal", [True, False])
def test_the_bootstrap_is_that_of_a_ratio(equal):
    n, chance = 1000, np.random.default_rng(0)
    weights = np.full(n, 2.0) if equal else chance.integers(1, 40, n).astype(np.float64)
    values = 0.3 * weights + chance.normal(0.0, 1.0, n) * weights
    ratio = values.sum() / weights.sum()
    error = math.sqrt(((values - ratio * weights) ** 2).sum()) / weights.sum()  # of a ratio, by linearization
    wanted = (ratio - 1.96 * error, ratio + 1.96 * error)
    assert paired_bootstrap(values, weights) == pytest.approx(wanted, abs=0.15 * error)


def test_few_units_have_no_interval():
    assert paired_bootstrap(np.full(LEAST, 3.0), np.ones(LEAST)) == (3.0, 3.0)
    assert paired_bootstrap(np.full(LEAST - 1, 3.0), np.ones(LEAST - 1)) is None


def test_pairs_of_one_uid_are_one_unit_and_others_are_alone():
    uids = ["a", None, "b", "a", None]
    pairs = [MinimalPair(("", ""), {"field": "f", "UID": uid} if uid else {"field": "f"}) for uid in uids]
    assert units(pairs).tolist() == [0, 1, 2, 0, 3]
