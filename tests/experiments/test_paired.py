"""Paired comparisons of benchmarks: exact where units are few, and false positives at the stated rate."""

import itertools

import numpy as np
import pytest

from experiments.paired import compare, share, sign_flip


def exact_p(differences: list[float]) -> float:
    """By all signs."""
    sums = [abs(np.dot(signs, differences)) for signs in itertools.product((-1, 1), repeat=len(differences))]
    return float(np.mean(np.array(sums) >= abs(sum(differences)) - 1e-9))


@pytest.mark.parametrize(
    "differences", [[1, 2, 3, 4, 5, 6], [-1, -2, -3, -4, -5, -6], [1, -2, 3, 0, 0, 2], [0, 0, 0], [1, -1, 2, -2]]
)
def test_p_is_that_of_all_signs(differences):
    assert sign_flip(differences) == pytest.approx(exact_p(differences), abs=0.02)


def test_only_clear_differences_are_significant_and_one_family_is_stricter():
    rng = np.random.default_rng(0)
    base = rng.integers(0, 5, 200).astype(float)
    better, weaker = base + (rng.random(200) < 0.3), base + 1.0 * (rng.random(200) < 0.5) - (rng.random(200) < 0.38)
    first, second = compare([(better, base), (base, base)], np.full(200, 5.0))
    assert first.is_significant
    assert first.difference == pytest.approx((better - base).sum() / 1000)
    assert first.interval[0] < first.difference < first.interval[1]
    assert not second.is_significant
    assert second.verdict == "not significant"
    (alone,) = compare([(weaker, base)], np.full(200, 5.0))
    among = compare([(weaker, base), *[(base, base)] * 9], np.full(200, 5.0))[0]
    assert alone.p_adjusted < among.p_adjusted


def test_a_share_is_in_percent_of_the_weights():
    assert share([1, 2], [4, 4]) == "37.5"  # two units give no interval
    assert share([1] * 30, [2] * 30) == "50.0 (50.0 to 50.0)"
