"""PWCCA and CKA: compared with plain implementations, and unchanged by the maps that the papers name."""

import numpy as np
import pytest
import scipy.linalg

from experiments.layers.measures import covariance, linear_cka, product_sums, pwcca

MEASURES = [pwcca, linear_cka]


def of(x: np.ndarray, y: np.ndarray):
    return covariance(product_sums(x, y), x.shape[1])


def related(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two layers with something in common, of different widths, means and scales."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 7)) @ rng.normal(size=(7, 7)) + 5
    return x, x @ rng.normal(size=(7, 9)) + 4 * rng.normal(size=(n, 9)) - 3


def pwcca_by_the_paper(x: np.ndarray, y: np.ndarray) -> float:
    """Canonical pairs as generalised eigenvectors, one by one; weights by the inner products with x's units."""
    x, y = x - x.mean(0), y - y.mean(0)
    xx, xy, yy = x.T @ x, x.T @ y, y.T @ y
    squares, vectors = scipy.linalg.eigh(xy @ np.linalg.solve(yy, xy.T), xx)
    total = weighted = 0.0
    for square, vector in zip(squares, vectors.T, strict=True):
        variate = x @ vector / np.linalg.norm(x @ vector)
        weight = sum(abs(variate @ unit) for unit in x.T)
        total, weighted = total + weight, weighted + weight * np.sqrt(max(square, 0))
    return weighted / total


def cka_by_the_paper(x: np.ndarray, y: np.ndarray) -> float:
    """By the kernels of all pairs of positions."""
    centre = np.eye(len(x)) - 1 / len(x)
    k, m = (centre @ (z @ z.T) @ centre for z in (x, y))
    return float(np.sum(k * m) / np.sqrt(np.sum(k * k) * np.sum(m * m)))


def test_they_equal_plain_implementations():
    for seed in range(3):
        x, y = related(seed=seed)
        assert pwcca(of(x, y)) == pytest.approx(pwcca_by_the_paper(x, y), abs=1e-9)
        assert pwcca(of(y[:, :7], x)) == pytest.approx(pwcca_by_the_paper(y[:, :7], x), abs=1e-9)
        assert linear_cka(of(x, y)) == pytest.approx(cka_by_the_paper(x, y), abs=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_units_that_repeat_others_or_never_change_do_no_harm(dtype):
    x, y = related(2000)
    x, y = x.astype(dtype), y.astype(dtype)
    padded = np.concatenate([y, y[:, :2] + y[:, 3:5], np.full((2000, 1), 7, dtype)], axis=1)
    assert pwcca(of(x, padded)) == pytest.approx(pwcca(of(x, y)), abs=1e-6)
    still = np.ones((2000, 3), dtype)
    for measure in MEASURES:
        assert measure(of(x, still)) == measure(of(still, x)) == 0


def test_what_y_has_lost_counts_as_nothing():
    """Of two equal, independent units of x, y keeps one."""
    x = np.random.default_rng(4).normal(size=(500, 2))
    x = np.linalg.qr(x - x.mean(0))[0]
    assert pwcca(of(x, x[:, :1])) == pytest.approx(1 / 2, abs=1e-9)
    assert pwcca(of(x[:, :1], x)) == pytest.approx(1, abs=1e-9)
    assert linear_cka(of(x, x[:, :1])) == pytest.approx(1 / np.sqrt(2), abs=1e-9)


def test_sums_of_groups_add_up_and_come_apart():
    x, y = related()
    parts = [product_sums(x[part], y[part]) for part in (slice(0, 30), slice(30, 170), slice(170, None))]
    whole = parts[0] + parts[1] + parts[2]
    for found, expected in zip(covariance(whole, x.shape[1]), of(x, y), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-7)
    without = of(np.concatenate([x[:30], x[170:]]), np.concatenate([y[:30], y[170:]]))
    for found, expected in zip(covariance(whole - parts[1], x.shape[1]), without, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-7)
