"""Arithmetic modulo 2^64 for hashes that are the same in every process and on every machine."""

import functools

import numpy as np


def mix(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele et al. 2014): a bijection of uint64 that mixes all bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@functools.lru_cache(4)
def powers(base: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The powers 0 .. `count` - 1 of an odd number, and of its inverse, uint64 [count] each."""
    factors = np.repeat(np.array([[base], [pow(base, -1, 1 << 64)]], np.uint64), count, axis=1)
    factors[:, 0] = 1
    rows = np.cumprod(factors, axis=1)
    return rows[0], rows[1]
