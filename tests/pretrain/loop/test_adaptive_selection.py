"""Factors of adaptive selection, by the formula of the paper."""

import numpy as np

from pretrain.loop.adaptive_selection import adapted


def test_factors_are_those_of_the_formula():
    factors = np.array([1.0, 1.0, 1.5, 0.5])
    right, predicted = np.array([0.0, 3.0, 0.0, 1e6]), np.array([0.0, 4.0, 9.0, 1e6])
    raised = []
    for old, hits, tries in zip(factors, right, predicted, strict=True):
        accuracy = (hits + 0.5) / (tries + 1)
        raised.append(max(0.2 * old + 0.8 * (1 - accuracy), 0.005 / 0.15))
    wanted = np.array(raised) / (sum(raised) / 4)
    np.testing.assert_allclose(adapted(factors, right, predicted), wanted, rtol=1e-12)


def test_a_token_that_is_always_right_keeps_a_small_chance():
    factors, many = np.ones(100), np.full(100, 1e9)
    right = np.where(np.arange(100) == 7, many, 0)
    for _ in range(20):
        factors = adapted(factors, right, many)
    assert 0.02 < factors[7] / factors[8] < 0.06
    assert np.isclose(factors.mean(), 1)
