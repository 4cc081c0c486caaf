"""Information of clusters about tokens: 1 if they determine them, 0 on average if not; and its intervals."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_mutual_info_score

from experiments.layers.measures import GROUPS, cluster, entropy, estimate, share_told


def test_it_is_the_adjusted_mutual_information_relative_to_the_tokens_entropy():
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 4, 300)
    clusters = np.where(rng.random(300) < 0.5, tokens, rng.integers(0, 30, 300))
    assert entropy(np.bincount(clusters)) > entropy(np.bincount(tokens))
    expected = adjusted_mutual_info_score(tokens, clusters, average_method="min")
    assert share_told(clusters, tokens) == pytest.approx(expected, abs=1e-9)


def test_states_in_heaps_are_clustered_by_heap_and_keyed():
    rng = np.random.default_rng(4)
    heap = rng.integers(0, 5, 400)
    states = (rng.normal(size=(5, 8))[heap] * 30 + rng.normal(size=(400, 8))).astype(np.float32)
    found = cluster(states, 20, seed=0)
    assert len(found) == 400
    assert share_told(found, heap) == pytest.approx(1, abs=0.01)
    np.testing.assert_array_equal(found, cluster(states, 20, seed=0))


def test_states_that_are_all_alike_or_few_make_no_fuss(recwarn):
    assert set(cluster(np.ones((50, 4), np.float32), 20, seed=0)) == {0}
    assert len(cluster(np.eye(3, dtype=np.float32), 20, seed=0)) == 3
    assert not [warning for warning in recwarn if "cluster" in str(warning.message)]


def test_the_interval_of_a_mean_is_students_and_covers():
    """For a mean of equal groups the jackknife is exact: t * s / sqrt(10)."""
    rng, hits = np.random.default_rng(5), 0
    for _ in range(400):
        groups = rng.normal(3, 2, GROUPS)
        left_out = [np.delete(groups, g).mean() for g in range(GROUPS)]
        found = estimate(groups.mean(), left_out)
        assert found.high - found.value == pytest.approx(2.262157 * groups.std(ddof=1) / np.sqrt(GROUPS))
        assert found.value - found.low == pytest.approx(found.high - found.value)
        hits += found.low < 3 < found.high
    assert 0.90 < hits / 400 < 0.99
