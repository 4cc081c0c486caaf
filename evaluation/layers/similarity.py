"""Similarity of two layers' states at the same positions: projection-weighted CCA and linear CKA.

Sources: Morcos, Raghu and Bengio, "Insights on representational similarity in neural networks with canonical
correlation", NeurIPS 2018 (arXiv:1806.05759); Kornblith, Norouzi, Lee and Hinton, "Similarity of neural network
representations revisited", ICML 2019 (arXiv:1905.00414).

Both need only sums of products, which are additive over positions. So a measure without one group of positions costs a
subtraction, not another pass.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RANK_TOLERANCE = 1e-5  # relative to a layer's largest singular value; fp32 noise is below it


class Covariance(NamedTuple):
    """Products of centred states over positions: xx [d, d], xy [d, e], yy [e, e]."""

    xx: Floats
    xy: Floats
    yy: Floats


@dataclass(frozen=True)
class Products:
    """Sums over n positions, of states x [n, d] and y [n, e], and of their products."""

    count: int
    x: Floats
    y: Floats
    xx: Floats
    xy: Floats
    yy: Floats

    @classmethod
    def of(cls, x: NDArray[Any], y: NDArray[Any]) -> "Products":
        """Sums for states [n, d] and [n, e] of any float dtype. Subtract a common mean first, to keep precision."""
        x, y = x.astype(np.float64), y.astype(np.float64)
        return cls(len(x), x.sum(0), y.sum(0), x.T @ x, x.T @ y, y.T @ y)

    def __add__(self, other: "Products") -> "Products":
        return Products(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def __sub__(self, other: "Products") -> "Products":
        return Products(*(getattr(self, name) - getattr(other, name) for name in self.__dataclass_fields__))

    def covariance(self) -> Covariance:
        """Products of the centred states."""
        return Covariance(
            self.xx - np.outer(self.x, self.x) / self.count,
            self.xy - np.outer(self.x, self.y) / self.count,
            self.yy - np.outer(self.y, self.y) / self.count,
        )


def pwcca(found: Covariance) -> float:
    """Projection-weighted CCA of x with y, from 0 to 1; 0 if x or y is constant.

    The mean of the canonical correlations. The weight of a canonical direction of x is the sum over x's units of the
    absolute inner products with it. If y has fewer directions than x, the rest count as correlation 0. The measure is
    invariant to invertible linear maps of y and to the scale of x, and not symmetric. For equal correlations the
    directions, and so the weights, are not unique.
    """
    root_x, scale_x = _whitening(found.xx)
    root_y, _ = _whitening(found.yy)
    if not root_x.size or not root_y.size:
        return 0.0
    directions, correlations, _ = np.linalg.svd(root_x.T @ found.xy @ root_y)
    weights = np.abs(directions.T @ scale_x).sum(axis=1)
    known = np.clip(correlations, 0, 1)
    return float(weights[: len(known)] @ known / weights.sum())


def linear_cka(found: Covariance) -> float:
    """Centred kernel alignment with linear kernels, from 0 to 1; 0 if x or y is constant.

    Symmetric, and invariant to rotation and scale of x and y.
    """
    scale = np.linalg.norm(found.xx) * np.linalg.norm(found.yy)
    return float(np.sum(found.xy**2) / scale) if scale else 0.0


def _whitening(covariance: Floats) -> tuple[Floats, Floats]:
    """For a covariance of rank r: the whitening map [d, r], and products of whitened and original states [r, d]."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > max(values[-1], 0) * RANK_TOLERANCE**2
    deviations, vectors = np.sqrt(values[kept]), vectors[:, kept]
    return vectors / deviations, deviations[:, None] * vectors.T
