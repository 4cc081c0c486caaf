"""Checksum of a global batch, independent of how the batch is split over ranks and micro-batches.

Each row has a 32-bit hash of its masked tokens, its labels and their places. The checksum is the sum of these hashes,
so it is the same for any split. float64 holds the sum exactly for up to two million rows.

The row hash is multilinear (Lemire and Kaser, "Strongly universal string hashing is fast", The Computer Journal, 2014):
a sum of products with fixed 64-bit random numbers modulo 2**64. The finalizer of SplitMix64 (Steele, Lea and Flood,
OOPSLA 2014) then mixes it; without this step, rows that exchange tokens would keep their sum. Two different batches
have the same checksum with a probability of about 2**-32.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from pretrain.masking import IGNORED
from pretrain.philox import derive_key, draw

_KEY = derive_key(0, "batch-checksum")


def row_hashes(
    tokens: NDArray[np.integer], positions: NDArray[np.int64], labels: NDArray[np.integer], seq_len: int
) -> NDArray[np.uint64]:
    """The hash of each row of a batch: uint64 [rows], each below 2**32.

    Args:
        tokens: [N]. positions, labels: [K] the predictions; seq_len: slots of a row.
    """
    constant, of_token, of_label = factors(seq_len)
    tokens = tokens.reshape(-1, seq_len).astype(np.uint64)
    labels = np.where(labels == IGNORED, 0, labels + 1).reshape(len(tokens), -1).astype(np.uint64)
    # Places are relative to their row. An unused place has label 0, so it adds nothing.
    of_place = of_label[positions.reshape(len(tokens), -1) % seq_len]
    # einsum is faster than @ on integers. Both wrap around at 2**64, which the hash requires.
    sums = np.einsum("rs,s->r", tokens, of_token) + np.einsum("rk,rk->r", labels, of_place)
    return _mixed(sums + constant) >> np.uint64(32)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64-bit numbers: a bijection; each output bit depends on all input bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@functools.lru_cache(maxsize=16)
def factors(seq_len: int) -> tuple[np.uint64, NDArray[np.uint64], NDArray[np.uint64]]:
    """Random factors for rows of this length: a constant, one per slot's token, one per slot's label."""
    numbers = draw(_KEY, 2 * seq_len + 1, seq_len, 0, 0)
    return numbers[0], numbers[1 : seq_len + 1], numbers[seq_len + 1 :]
