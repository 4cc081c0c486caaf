"""Token frequencies of a data set, and their entropy."""

import numpy as np

from data_prep.errors import DamagedData
from data_prep.format.reader import Dataset


def unigram_entropy(dataset: Dataset) -> float:
    """Entropy of the token distribution, in nats a token: the loss of the best prediction that ignores context."""
    counts = np.zeros(dataset.manifest.tokenizer.vocab_size, dtype=np.int64)
    for block in range(dataset.n_blocks):
        counts += token_counts(dataset, block)
    return entropy(counts)


def token_counts(dataset: Dataset, block: int) -> np.ndarray:
    """How often each id occurs in a block, int64 [vocabulary]."""
    tokens, vocab_size = dataset.tokens(block), dataset.manifest.tokenizer.vocab_size
    if (largest := int(tokens.max())) >= vocab_size:
        name = dataset.shard(block).name
        raise DamagedData(f"{name} block {dataset.key(block)}: id {largest} is not in the vocabulary of {vocab_size}.")
    return np.bincount(tokens, minlength=vocab_size)


def entropy(counts: np.ndarray) -> float:
    """Entropy of a distribution that is given by counts, in nats."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
