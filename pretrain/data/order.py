"""Keyed permutation with random access: the position of block i in an epoch, without a shuffled list.

A balanced Feistel network over the smallest even number of bits that holds n. It is applied until the value is below n
("cycle walking"; Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). The result is a bijection on
0..n-1 at a cost that does not depend on n.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pretrain.philox import Key, philox

_ROUNDS = 6


def permute(positions: ArrayLike, n: int, key: Key, epoch: int) -> NDArray[np.int64]:
    """The images of `positions` (each in 0..n-1) under the permutation of `epoch`: int64, same shape."""
    values = np.array(positions, dtype=np.uint64, ndmin=1)
    if values.size and int(values.max()) >= n:
        raise IndexError(f"position {int(values.max())} is outside a permutation of {n}")
    half_bits = max(1, ((n - 1).bit_length() + 1) // 2)
    values = _feistel(values, half_bits, key, epoch)
    while (outside := values >= n).any():
        values[outside] = _feistel(values[outside], half_bits, key, epoch)
    return values.astype(np.int64).reshape(np.shape(positions))


def _feistel(values: NDArray[np.uint64], half_bits: int, key: Key, epoch: int) -> NDArray[np.uint64]:
    mask, shift = np.uint64((1 << half_bits) - 1), np.uint64(half_bits)
    left, right = values >> shift, values & mask
    for round_number in range(_ROUNDS):
        scramble = philox(key, right, round_number, epoch, 0)[0] & mask
        left, right = right, left ^ scramble
    return (left << shift) | right
