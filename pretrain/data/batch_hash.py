"""Checksum of a global batch, independent of how the batch is split over ranks and micro-batches.

Each row has a 32-bit hash of its masked tokens, its labels and their places. The checksum is the sum of these hashes,
so it is the same for any split. float64 holds the sum exactly for up to two million rows.

The row hash is multilinear (Lemire and Kaser, "Strongly universal string hashing is fast", The Computer Journal, 2014):
a sum of products with fixed 64-bit random numbers modulo 2**64. The finalizer of SplitMix64 (Steele, Lea and Flood,
OOPSLA 2014) then mixes it; without this step, rows that exchange tokens would keep their sum. Two different batches
have the same checksum with a probability of about 2**-32.

Everything is computed in int64, whose products and sums wrap around as uint64's do.
"""

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain.masking import IGNORED
from pretrain.philox import derive_key, draw

_KEY = derive_key(0, "batch-checksum")
_MIX = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)  # the same bits as int64
Factors = tuple[int, Any, Any]


def row_hashes(tokens: Any, positions: Any, labels: Any, factors: Factors) -> Any:
    """The hash of each row of a batch: int64 [rows], each from 0 to 2**32 - 1.

    Args:
        tokens: [N]. positions, labels: [K] the predictions. All are int64.
        factors: `row_factors` of the rows.
    """
    constant, of_token, of_label = factors
    seq_len = len(of_token)
    rows = len(tokens) // seq_len
    used = (labels + 1) * (labels != IGNORED)
    # Places are relative to their row. An unused place has label 0, so it adds nothing.
    of_labels = (used * of_label[positions % seq_len]).reshape(rows, -1).sum(1)
    values = (tokens.reshape(rows, seq_len) * of_token).sum(1) + of_labels + constant
    values = (values ^ _shifted(values, 30)) * _MIX[0]
    values = (values ^ _shifted(values, 27)) * _MIX[1]
    return _shifted(values ^ _shifted(values, 31), 32)


@functools.lru_cache(maxsize=16)
def row_factors(seq_len: int) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """Random factors for rows of this length: a constant, one per slot's token, one per slot's label."""
    numbers = draw(_KEY, 2 * seq_len + 1, seq_len, 0, 0).view(np.int64)
    return int(numbers[0]), numbers[1 : seq_len + 1], numbers[seq_len + 1 :]


def _shifted(values: Any, by: int) -> Any:
    """Shift right as uint64: bring in zeros."""
    return (values >> by) & ((1 << (64 - by)) - 1)
