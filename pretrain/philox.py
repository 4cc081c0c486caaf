"""Philox-4x32-10, the counter-based generator behind every random choice.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the published test vectors
of Random123 are in tests/pretrain/test_philox.py. A draw is a function of (key, counter) alone, so nothing depends on
which process asks, or on what was drawn before.
"""

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

_ROUNDS = 6

Key = tuple[int, int]

_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
_CHUNK = 1 << 14  # counters per chunk: their words stay in the cache, which doubles the speed


def derive_key(seed: int, purpose: str) -> Key:
    """The 2 x 32-bit key of one purpose ("mask", "blocks", ...) under a seed; purposes never share draws."""
    digest = hashlib.sha256(f"maskwright:{purpose}:{seed}".encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def philox(key: Key, c0: ArrayLike, c1: ArrayLike, c2: ArrayLike, c3: ArrayLike) -> tuple[NDArray[np.uint64], ...]:
    """Four uniform 32-bit words for each counter.

    Args:
        key: two words below 2**32.
        c0, c1, c2, c3: the counter's words, each below 2**32; arrays broadcast together.

    Returns:
        Four uint64 arrays of the broadcast shape, of one dimension at least; each value is below 2**32.
    """
    # At least one dimension, for numpy warns of the overflow of scalars; the rounds broadcast the words.
    x0, x1, x2, x3 = (np.atleast_1d(np.asarray(c, dtype=np.uint64)) for c in (c0, c1, c2, c3))
    k0, k1 = key
    for _ in range(10):
        p0, p1 = x0 * _MULTIPLIER_0, x2 * _MULTIPLIER_1
        x0 = (p1 >> _SHIFT) ^ x1 ^ np.uint64(k0)
        x1 = p1 & _LOW
        x2 = (p0 >> _SHIFT) ^ x3 ^ np.uint64(k1)
        x3 = p0 & _LOW
        k0, k1 = (k0 + _WEYL_0) & 0xFFFFFFFF, (k1 + _WEYL_1) & 0xFFFFFFFF
    return x0, x1, x2, x3


def draw(key: Key, n: int, c1: int, c2: int, c3: int) -> NDArray[np.uint64]:
    """`n` uniform 64-bit numbers under counters (0.., c1, c2, c3), two of each: uint64 [n]."""
    numbers = np.empty((-(-n // 2), 2), dtype=np.uint64)
    for first in range(0, len(numbers), _CHUNK):
        part = numbers[first : first + _CHUNK]
        w0, w1, w2, w3 = philox(key, np.arange(first, first + len(part)), c1, c2, c3)
        part[:, 0], part[:, 1] = (w0 << _SHIFT) | w1, (w2 << _SHIFT) | w3
    return numbers.reshape(-1)[:n]


def permute(positions: ArrayLike, n: int, key: Key, epoch: int) -> NDArray[np.int64]:
    """The images of `positions` (each in 0..n-1) under the keyed permutation of `epoch`: int64, same shape.

    A balanced Feistel network over the smallest even number of bits that holds n. It is applied until the value is
    below n ("cycle walking"; Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). So the cost of a
    value does not depend on n, and no shuffled list is needed.
    """
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
