"""Philox-4x32-10 against the published vectors of Random123 (kat_vectors), and the keyed permutation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.philox import derive_key, draw, permute, philox

ONES = 0xFFFFFFFF
VECTORS = [  # counter, key, output
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "output"), VECTORS)
def test_published_vectors(counter, key, output):
    assert tuple(word.item() for word in philox(key, *counter)) == output


def test_arrays_equal_single_counters():
    places = np.arange(7)
    together = philox((1, 2), places, 3, 4, 5)
    for place in places:
        assert [word[place].item() for word in together] == [word.item() for word in philox((1, 2), place, 3, 4, 5)]


def test_draws_are_uniform_and_purposes_differ():
    values = draw(derive_key(0, "a"), 100_000, 0, 0, 0) / 2.0**64
    assert abs(values.mean() - 0.5) < 0.005
    assert abs(values.var() - 1 / 12) < 0.002
    other = draw(derive_key(0, "b"), 100_000, 0, 0, 0) / 2.0**64
    assert abs(np.corrcoef(values, other)[0, 1]) < 0.02
    assert derive_key(1, "a") != derive_key(0, "a")


@given(n=st.integers(1, 3000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 1000))
def test_a_permutation_is_a_bijection_with_random_access(n, seed, epoch):
    key = derive_key(seed, "blocks")
    whole = permute(np.arange(n), n, key, epoch)
    assert sorted(whole.tolist()) == list(range(n))
    some = np.arange(n)[:: max(1, n // 5)]
    assert (permute(some, n, key, epoch) == whole[some]).all()


def test_a_golden_permutation():
    """Order is part of what a run is: a change here needs a new PLAN_VERSION."""
    assert permute(np.arange(10), 10, (1, 2), 0).tolist() == [0, 2, 8, 9, 3, 1, 4, 5, 7, 6]


def test_permutations_differ_by_epoch_and_key_and_mix():
    n = 10_000
    first = permute(np.arange(n), n, (1, 2), 0)
    for other in (permute(np.arange(n), n, (1, 2), 1), permute(np.arange(n), n, (1, 3), 0)):
        assert (first == other).mean() < 0.01
    assert abs(np.corrcoef(first, np.arange(n))[0, 1]) < 0.05
    gaps = np.abs(np.diff(first))
    assert abs(gaps.mean() / (n / 3) - 1) < 0.05  # the mean distance of two uniform places is n / 3


def test_a_place_outside_is_refused():
    with pytest.raises(IndexError):
        permute([10], 10, (1, 2), 0)
