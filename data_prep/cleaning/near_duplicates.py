"""MinHash signatures over 5-grams of words or 10-grams of characters, to find near duplicates.

The share of equal values in the sketches of two documents estimates the Jaccard similarity of their sets of n-grams
(Broder 1997, "On the resemblance and containment of documents"). Each n-gram has one hash, whose top bits select one of
128 values; the value is the minimum of its hashes (Li, Owen and Zhang 2012, one-permutation hashing). A value without
hashes copies another value, the first in its own fixed random order (Shrivastava 2017, "Optimal densification for fast
and accurate minwise hashing"). Bands are as in Leskovec et al., "Mining of massive datasets", chapter 3.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from data_prep.cleaning.word_hashes import batches, mix, ngrams, parts, split_words

VALUES = 128
NgramUnit = Literal["words", "characters"]
SHINGLE: dict[NgramUnit, int] = {"words": 5, "characters": 10}  # DNA has too few different 5-grams of characters
_EMPTY = np.uint64(2**64 - 1)
_BASE = np.uint64(0xA0761D6478BD642F)


def bands_and_rows(threshold: float) -> tuple[int, int]:
    """The number of bands and of values in each, with (1 / bands) ^ (1 / rows) nearest to `threshold`."""
    choices = [(VALUES // rows, rows) for rows in range(1, VALUES + 1)]
    return min(choices, key=lambda choice: abs((1 / choice[0]) ** (1 / choice[1]) - threshold))


def signatures(texts: Sequence[str], threshold: float, unit: NgramUnit = "words") -> np.ndarray:
    """Hashes of the bands of each sketch, uint64 [n_texts, bands]; 0 for texts without an n-gram."""
    bands, rows = bands_and_rows(threshold)
    hashes = [_band_hashes(sketches(batch, unit), bands, rows) for batch in batches(texts)]
    return np.concatenate([np.empty((0, bands), np.uint64), *hashes])


def sketches(texts: Sequence[str], unit: NgramUnit = "words") -> np.ndarray:
    """The 128 MinHash values of each text, uint64 [n_texts, 128]; 2^64 - 1 for texts without an n-gram."""
    values = np.full(len(texts) * VALUES, _EMPTY)
    words = split_words(texts, unit == "characters")
    for hashes, per_text in parts(words.hashes, words.per_text, SHINGLE[unit]):
        grams, owners = ngrams(hashes, per_text, SHINGLE[unit])
        places = (grams >> np.uint64(64 - 7)).astype(np.int64)
        np.minimum.at(values, owners * VALUES + places, np.minimum(grams, _EMPTY - np.uint64(1)))
    return _densified(values.reshape(len(texts), VALUES))


def _densified(values: np.ndarray) -> np.ndarray:
    """`values` [n, 128] where each empty value is replaced by the first non-empty one in its order."""
    filled = values.copy()
    rows, places = np.nonzero((values == _EMPTY) & (values != _EMPTY).any(axis=1, keepdims=True))
    for order in _orders():
        if not len(rows):
            break
        copied = values[rows, order[places]]
        filled[rows, places] = copied
        still = copied == _EMPTY
        rows, places = rows[still], places[still]
    return filled


@lru_cache(maxsize=1)
def _orders() -> np.ndarray:
    """Column j is a random order of the other columns, int64 [127, 128]."""
    draws = mix(np.arange(1, VALUES * VALUES + 1, dtype=np.uint64)).reshape(VALUES, VALUES)
    np.fill_diagonal(draws, _EMPTY)
    return np.argsort(draws, axis=0, kind="stable")[:-1]


def _band_hashes(values: np.ndarray, bands: int, rows: int) -> np.ndarray:
    grouped = values[:, : bands * rows].reshape(len(values), bands, rows)
    # Each band has its own start value, so equal values in different bands do not match.
    total = np.tile(mix(np.arange(1, bands + 1, dtype=np.uint64)), (len(values), 1))
    for row in range(rows):
        total *= _BASE
        total += grouped[:, :, row]
    hashes = np.maximum(mix(total), np.uint64(1))
    hashes[(values == _EMPTY).all(axis=1)] = 0
    return hashes
