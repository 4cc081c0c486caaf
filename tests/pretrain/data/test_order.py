"""The keyed permutation: a bijection at every size, stable over versions, different by key and epoch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.philox import derive_key, permute


@given(n=st.integers(1, 3000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 1000))
def test_is_a_bijection_with_random_access(n, seed, epoch):
    key = derive_key(seed, "blocks")
    whole = permute(np.arange(n), n, key, epoch)
    assert sorted(whole.tolist()) == list(range(n))
    some = np.arange(n)[:: max(1, n // 5)]
    assert (permute(some, n, key, epoch) == whole[some]).all()


def test_golden():
    """Order is part of what a run is: a change here needs a new PLAN_VERSION."""
    assert permute(np.arange(10), 10, (1, 2), 0).tolist() == [0, 2, 8, 9, 3, 1, 4, 5, 7, 6]


def test_differs_by_epoch_and_key_and_mixes():
    n = 10_000
    first = permute(np.arange(n), n, (1, 2), 0)
    for other in (permute(np.arange(n), n, (1, 2), 1), permute(np.arange(n), n, (1, 3), 0)):
        assert (first == other).mean() < 0.01
    assert abs(np.corrcoef(first, np.arange(n))[0, 1]) < 0.05
    gaps = np.abs(np.diff(first))
    assert abs(gaps.mean() / (n / 3) - 1) < 0.05  # the mean distance of two uniform places is n / 3


def test_outside_is_refused():
    with pytest.raises(IndexError):
        permute([10], 10, (1, 2), 0)
