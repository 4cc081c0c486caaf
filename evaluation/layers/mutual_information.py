"""Mutual information of token identity and clusters of hidden states.

k-means discretises the states, then the mutual information of cluster and token is counted, as in Voita, Sennrich and
Titov ("The Bottom-up Evolution of Representations in the Transformer", EMNLP 2019, arXiv:1909.01380). Counts of few
positions overestimate the information. The adjustment for chance is from Vinh, Epps and Bailey, "Information theoretic
measures for clusterings comparison", JMLR 2010.
"""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.format import entropy

_BATCH = 2048  # states of a step of mini-batch k-means


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
