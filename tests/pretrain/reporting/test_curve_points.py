"""Curves with few points keep every peak; moving means of noisy metrics."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.reporting.curve_charts import smooth, thinned


@given(st.lists(st.floats(-1e9, 1e9), max_size=300), st.integers(1, 20))
def test_thinning_keeps_ends_extremes_and_order(values, buckets):
    steps, found = thinned(np.arange(len(values)), np.array(values, dtype=float), buckets)
    assert len(found) <= 2 * buckets + 2
    assert all(values[step] == value for step, value in zip(steps.tolist(), found.tolist(), strict=True))
    assert (np.diff(steps) > 0).all()
    if values:
        assert (steps[0], steps[-1]) == (0, len(values) - 1)
        assert (found.min(), found.max()) == (min(values), max(values))


def test_thinning_leaves_out_what_is_not_finite():
    steps, values = thinned(np.arange(4), np.array([1.0, np.nan, np.inf, 2.0]), 800)
    assert (steps.tolist(), values.tolist()) == ([0, 3], [1.0, 2.0])


@pytest.mark.parametrize("window", [0, 1, 2, 5, 50, 5000])
def test_smoothing_is_the_mean_over_the_window(window):
    values = np.random.default_rng(0).normal(size=400)
    values[[3, 90]] = np.nan
    half = min(window | 1, 399) // 2
    expected = [np.nanmean(values[max(0, i - half) : i + half + 1]) if half else values[i] for i in range(400)]
    assert smooth(values, window) == pytest.approx(np.array(expected), nan_ok=True)


def test_smoothing_after_a_huge_value_is_as_before_it():
    values = np.ones(1000)
    values[100] = 1e30
    assert smooth(values, 21)[150:].tolist() == [1.0] * 850
