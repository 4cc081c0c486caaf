"""Unigram baseline: the probability of a token is its relative frequency in a data set."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from data_prep.format import Dataset
from evaluation.likelihood.prediction_streams import Answers, Stream
from pretrain.masking import Vocabulary


def token_counts(
    dataset: Dataset, progress: Callable[[int, int], None] = lambda done, total: None
) -> NDArray[np.int64]:
    """Count each id in a data set: [vocab_size]. Reads the whole data set.

    Args:
        progress: (blocks read, blocks in total).
    """
    counts = np.zeros(dataset.manifest.tokenizer.vocab_size, dtype=np.int64)
    for block in range(dataset.n_blocks):
        counts += np.bincount(dataset.tokens(block), minlength=len(counts))
        progress(block + 1, dataset.n_blocks)
    return counts


class Unigram:
    """A predictor from token counts: (count + 1) / (tokens + ordinary ids).

    Args:
        counts: [vocab_size], see token_counts; counts of special tokens are ignored.

    Attributes:
        log_probabilities: float64 [vocab_size].
    """

    causal = True  # it reads no context, so nothing needs a mask

    def __init__(self, counts: NDArray[np.int64], vocabulary: Vocabulary):
        ordinary = vocabulary.is_ordinary
        smoothed = np.where(ordinary, counts + 1.0, 1.0)  # [UNK] counts as a token that never occurs
        self.log_probabilities = np.log(smoothed) - np.log(smoothed[ordinary].sum())
        self._likeliest = int(np.argmax(np.where(ordinary, counts, -1)))

    def __call__(self, stream: Stream) -> Answers:
        return Answers(self.log_probabilities[stream.labels], stream.labels == self._likeliest)
