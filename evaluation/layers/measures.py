"""Measures of hidden states: similarity of two layers, information about tokens, and jackknife intervals.

Similarity: Morcos, Raghu and Bengio, "Insights on representational similarity in neural networks with canonical
correlation", NeurIPS 2018 (arXiv:1806.05759); Kornblith, Norouzi, Lee and Hinton, "Similarity of neural network
representations revisited", ICML 2019 (arXiv:1905.00414). Both need only sums of products, which are additive over
positions. So a measure without one group of positions costs a subtraction, not another pass.

Information: k-means discretises the states, then the mutual information of cluster and token is counted, as in Voita,
Sennrich and Titov ("The Bottom-up Evolution of Representations in the Transformer", EMNLP 2019, arXiv:1909.01380).
Counts of few positions overestimate it. The adjustment for chance is from Vinh, Epps and Bailey, "Information theoretic
measures for clusterings comparison", JMLR 2010.

Intervals: Kott, "The delete-a-group jackknife", Journal of Official Statistics 17, 2001. The bootstrap would repeat
positions, which inflates the similarity of two layers. All positions of a row are in one group, so correlation within
rows is accounted for.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, stdtrit

GROUPS = 10  # of the jackknife
_T = float(stdtrit(GROUPS - 1, 0.975))  # Student's t
_RANK_TOLERANCE = 1e-5  # relative to a layer's largest singular value; fp32 noise is below it
_BATCH = 2048  # states of a step of mini-batch k-means

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def estimate(value: float, left_out: Sequence[float]) -> Estimate:
    """Interval around `value`, the measure of all positions. left_out: the measure without each of GROUPS groups."""
    spread = np.asarray(left_out, dtype=np.float64)
    assert len(spread) == GROUPS
    deviation = np.sqrt((GROUPS - 1) / GROUPS * np.sum((spread - spread.mean()) ** 2))
    return Estimate(value, float(value - _T * deviation), float(value + _T * deviation))


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
    kept = values > max(values[-1], 0) * _RANK_TOLERANCE**2
    deviations, vectors = np.sqrt(values[kept]), vectors[:, kept]
    return vectors / deviations, deviations[:, None] * vectors.T


def cluster(states: NDArray[Any], clusters: int, seed: int) -> NDArray[np.int64]:
    """Cluster number of each state [n, d] by mini-batch k-means: int64 [n], below `clusters`; n is at least 1.

    There are fewer clusters if there are fewer distinct states.
    """
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning

    number = min(clusters, len(states))
    means = MiniBatchKMeans(number, batch_size=_BATCH, n_init=1, random_state=seed, max_iter=50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # identical states, for example the embeddings of [MASK]
        return np.asarray(means.fit_predict(states), dtype=np.int64)


def counts_of(clusters: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the pairs of cluster and token, both [n]: [number of clusters, number of tokens]."""
    cluster_number, cluster_of = np.unique(clusters, return_inverse=True)
    token_number, token_of = np.unique(tokens, return_inverse=True)
    counts = np.zeros((len(cluster_number), len(token_number)), dtype=np.int64)
    np.add.at(counts, (cluster_of, token_of), 1)
    return counts


def entropy(counts: NDArray[np.int64]) -> float:
    """Entropy of the distribution with these counts, in nats."""
    return float(entr(counts / counts.sum()).sum())


def share_told(counts: NDArray[np.int64]) -> float:
    """Share of a token's entropy that its cluster explains, adjusted for chance.

    (I - E) / (H - E): I is the mutual information of the counts [clusters, tokens], H the entropy of the tokens, and E
    the expectation of I for random clusters. It is 1 if the cluster determines the token, 0 on average for unrelated
    clusters (single values may be negative), and 0 if there is only one token.
    """
    from sklearn.metrics.cluster import expected_mutual_information

    counts = counts[counts.any(axis=1)][:, counts.any(axis=0)]
    total = int(counts.sum())
    whole = entropy(counts.sum(axis=0))
    if counts.shape[1] < 2:
        return 0.0
    found = whole + entropy(counts.sum(axis=1)) - entropy(counts.reshape(-1))
    by_chance = expected_mutual_information(counts, total)
    room = whole - by_chance
    return float((found - by_chance) / room) if room > 1e-9 else 0.0
