"""How much states tell of a token's identity: mutual information with clusters of states.

As Voita, Sennrich and Titov do ("The Bottom-up Evolution of Representations in the Transformer", EMNLP 2019,
arXiv:1909.01380), states are discretised by k-means, and the mutual information of cluster and token is counted. With
few positions such counts find information where there is none; here that is corrected for, after Vinh, Epps and Bailey,
"Information theoretic measures for clusterings comparison", JMLR 2010.
"""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.format import entropy

_BATCH = 2048  # states of a step of mini-batch k-means


def cluster(states: NDArray[Any], clusters: int, seed: int) -> NDArray[np.int64]:
    """The cluster of each of the states [n, d] by mini-batch k-means: int64 [n], from 0 to before `clusters`.

    There are fewer where fewer states differ; n is at least 1.
    """
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning

    number = min(clusters, len(states))
    means = MiniBatchKMeans(number, batch_size=_BATCH, n_init=1, random_state=seed, max_iter=50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # states that are all alike, as those of [MASK] may be
        return np.asarray(means.fit_predict(states), dtype=np.int64)


def counts_of(clusters: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each cluster meets each token, both [n]: [number of clusters, number of tokens]."""
    cluster_number, cluster_of = np.unique(clusters, return_inverse=True)
    token_number, token_of = np.unique(tokens, return_inverse=True)
    counts = np.zeros((len(cluster_number), len(token_number)), dtype=np.int64)
    np.add.at(counts, (cluster_of, token_of), 1)
    return counts


def share_told(counts: NDArray[np.int64]) -> float:
    """The share of a token's entropy that its cluster tells, adjusted for chance.

    (I - E) / (H - E), with I the mutual information in the counts [clusters, tokens], H the entropy of the tokens, and
    E what I is on average if clusters meet tokens at random. So it is 1 where the cluster decides the token, on average
    0 where it says nothing (and sometimes below), and 0 where there is one token alone.
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
