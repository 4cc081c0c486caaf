"""How alike two layers' states of the same positions are: projection-weighted CCA and linear CKA.

Sources: Morcos, Raghu and Bengio, "Insights on representational similarity in neural networks with canonical
correlation", NeurIPS 2018 (arXiv:1806.05759); Kornblith, Norouzi, Lee and Hinton, "Similarity of neural network
representations revisited", ICML 2019 (arXiv:1905.00414).

Both need no more than sums of products, which are additive over positions. So what a group of positions does to a
measure is found without reading the others again.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RANK_TOLERANCE = 1e-5  # of a layer's largest singular value: fp32 states have noise below it


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
        """Of states [n, d] and [n, e] of any floating dtype; take a common mean off first, lest digits be lost."""
        x, y = x.astype(np.float64), y.astype(np.float64)
        return cls(len(x), x.sum(0), y.sum(0), x.T @ x, x.T @ y, y.T @ y)

    def __add__(self, other: "Products") -> "Products":
        return Products(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def __sub__(self, other: "Products") -> "Products":
        return Products(*(getattr(self, name) - getattr(other, name) for name in self.__dataclass_fields__))

    def covariance(self) -> Covariance:
        """Products of the states less their means."""
        return Covariance(
            self.xx - np.outer(self.x, self.x) / self.count,
            self.xy - np.outer(self.x, self.y) / self.count,
            self.yy - np.outer(self.y, self.y) / self.count,
        )


def pwcca(found: Covariance) -> float:
    """Projection-weighted CCA of x with y, from 0 to 1; 0 where x or y does not vary.

    Canonical correlations, weighted by how much of x's units lies in each canonical direction of x: the sum over units
    of the absolute inner products. Directions of x for which y has none left count with a correlation of 0. It is the
    same for every invertible linear map of y and every scale of x, but not symmetric. Where several correlations are
    equal, the directions, and so their weights, are not unique.
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
    """Centred kernel alignment with linear kernels, from 0 to 1; 0 where x or y does not vary.

    It is the same for every rotation and every scale of x and of y, and symmetric.
    """
    scale = np.linalg.norm(found.xx) * np.linalg.norm(found.yy)
    return float(np.sum(found.xy**2) / scale) if scale else 0.0


def _whitening(covariance: Floats) -> tuple[Floats, Floats]:
    """For a covariance of rank r, what turns states into orthonormal ones [d, r], and these times the states [r, d]."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > max(values[-1], 0) * RANK_TOLERANCE**2
    deviations, vectors = np.sqrt(values[kept]), vectors[:, kept]
    return vectors / deviations, deviations[:, None] * vectors.T
