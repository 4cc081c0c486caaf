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
from sklearn.cluster import MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import mutual_info_score
from sklearn.metrics.cluster import contingency_matrix, expected_mutual_information

GROUPS = 10  # of the jackknife
JACKKNIFE_T = float(stdtrit(GROUPS - 1, 0.975))  # Student's t
_RANK_TOLERANCE = 1e-5  # relative to a layer's largest singular value; fp32 noise is below it
_BATCH = 2048  # states of a step of mini-batch k-means

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.high - self.value:.3f}"


def estimate(value: float, left_out: Sequence[float]) -> Estimate:
    """Interval around `value`, the measure of all positions. left_out: the measure without each of GROUPS groups."""
    spread = np.asarray(left_out, dtype=np.float64)
    assert len(spread) == GROUPS
    deviation = np.sqrt((GROUPS - 1) / GROUPS * np.sum((spread - spread.mean()) ** 2))
    return Estimate(value, float(value - JACKKNIFE_T * deviation), float(value + JACKKNIFE_T * deviation))


class Covariance(NamedTuple):
    """Products of centred states over positions: xx [d, d], xy [d, e], yy [e, e]."""

    xx: Floats
    xy: Floats
    yy: Floats


def product_sums(x: NDArray[Any], y: NDArray[Any]) -> Floats:
    """Sums over n positions of the products of 1, x [n, d] and y [n, e]: [1 + d + e, 1 + d + e]; groups add up.

    Subtract a common mean from the states first, to keep precision.
    """
    rows = np.concatenate([np.ones((len(x), 1)), x, y], axis=1, dtype=np.float64)
    return rows.T @ rows


def covariance(sums: Floats, d: int) -> Covariance:
    """Products of the centred states, from the sums of `product_sums`. d: width of x."""
    count, of_each = sums[0, 0], sums[0, 1:]
    centred = sums[1:, 1:] - np.outer(of_each, of_each) / count
    return Covariance(centred[:d, :d], centred[:d, d:], centred[d:, d:])


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
    number = min(clusters, len(states))
    means = MiniBatchKMeans(number, batch_size=_BATCH, n_init=1, random_state=seed, max_iter=50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # identical states, for example the embeddings of [MASK]
        return np.asarray(means.fit_predict(states), dtype=np.int64)


def entropy(counts: NDArray[np.int64]) -> float:
    """Entropy of the distribution with these counts, in nats."""
    return float(entr(counts / counts.sum()).sum())


def share_told(clusters: NDArray[np.int64], tokens: NDArray[np.int64]) -> float:
    """Share of a token's entropy that its cluster explains, adjusted for chance. clusters, tokens: [n].

    (I - E) / (H - E): I is the mutual information of cluster and token, H the entropy of the tokens, and E the
    expectation of I for random clusters. It is 1 if the cluster determines the token, 0 on average for unrelated
    clusters (single values may be negative), and 0 if there is only one token.
    """
    counts = contingency_matrix(clusters, tokens)
    whole = entropy(counts.sum(axis=0))
    by_chance = expected_mutual_information(counts, len(tokens))
    room = whole - by_chance
    found = mutual_info_score(None, None, contingency=counts)
    return float((found - by_chance) / room) if room > 1e-9 else 0.0
