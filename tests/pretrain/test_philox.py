"""Philox-4x32-10 against the published vectors of Random123 (kat_vectors)."""

import numpy as np
import pytest

from pretrain.philox import derive_key, draw, philox
from tests.support.philox_vectors import VECTORS


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
