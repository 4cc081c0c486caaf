"""Shuffled n-grams: a keyed, uniform permutation within each document."""

from collections import Counter
from collections.abc import Iterator
from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.data.token_flags import shuffled_ngrams
from pretrain.philox import derive_key

KEY = derive_key(3, "word order")
Word = tuple[int, ...]


def shuffle_ngrams(tokens, lengths, begins_word, n, key, block):
    return tokens[shuffled_ngrams(lengths, begins_word, n, key, block)]


@st.composite
def blocks(draw) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(tokens, document lengths, word starts); token values say where a token stood."""
    lengths = np.array(draw(st.lists(st.integers(0, 12), max_size=12)), dtype=np.uint32)
    total = int(lengths.sum())
    dtype = draw(st.sampled_from([np.uint16, np.uint32]))
    begins = np.array(draw(st.lists(st.booleans(), min_size=total, max_size=total)), dtype=bool)
    return np.arange(7, 7 + total).astype(dtype), lengths, begins


def documents(tokens: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths.astype(int)))[:-1]]


def ngrams(document: list[int], begins: dict[int, bool], n: int) -> Iterator[Word]:
    """The n-grams of the original document, one token after the other."""
    words: list[list[int]] = []
    for place, token in enumerate(document):
        if place == 0 or begins[token]:
            words.append([])
        words[-1].append(token)
    for first in range(0, len(words), n):
        yield tuple(token for word in words[first : first + n] for token in word)


@settings(max_examples=300, deadline=None)
@given(blocks(), st.integers(1, 5), st.integers(0, 2**40))
def test_each_document_is_a_permutation_of_its_ngrams(block, n, number):
    tokens, lengths, begins = block
    before = tokens.copy()
    found = shuffle_ngrams(tokens, lengths, begins, n, KEY, number)
    assert found.dtype == tokens.dtype
    np.testing.assert_array_equal(tokens, before)
    np.testing.assert_array_equal(found, shuffle_ngrams(tokens, lengths, begins, n, KEY, number))
    starts = dict(zip(tokens.tolist(), begins.tolist(), strict=True))
    for original, shuffled in zip(documents(tokens, lengths), documents(found, lengths), strict=True):
        by_first = {ngram[0]: ngram for ngram in ngrams(original, starts, n)}
        rebuilt: list[int] = []
        while len(rebuilt) < len(shuffled):
            rebuilt += by_first.pop(shuffled[len(rebuilt)])  # KeyError: an n-gram was torn, or is there twice
        assert rebuilt == shuffled
        assert not by_first


def test_every_order_is_equally_likely():
    """Four words a document, the second of two pieces, in 24,000 documents: chi-square over the 24 orders."""
    count, starts = 24_000, [True, True, False, True, True]
    tokens = np.tile(np.arange(5, dtype=np.uint16), count)
    found = shuffle_ngrams(tokens, np.full(count, 5, np.uint32), np.tile(np.array(starts), count), 1, KEY, 9)
    orders = Counter(tuple(token for token in row if token != 2) for row in found.reshape(count, 5).tolist())
    assert set(orders) == set(permutations((0, 1, 3, 4)))
    chi_square = sum((seen - 1000) ** 2 / 1000 for seen in orders.values())
    assert 7 < chi_square < 50  # 23 degrees of freedom: outside with a chance of about 0.002


def test_the_order_depends_on_key_and_block():
    tokens, lengths, begins = np.arange(60, dtype=np.uint16), np.array([60], np.uint32), np.ones(60, dtype=bool)
    other_key = derive_key(4, "word order")
    cases = [(KEY, 0), (KEY, 1), (KEY, 2**32), (other_key, 0)]
    orders = {tuple(shuffle_ngrams(tokens, lengths, begins, 2, key, block).tolist()) for key, block in cases}
    assert len(orders) == len(cases)


def test_golden():
    """Integers alone decide it, so it is the same on every machine; a change breaks the resume of runs that use it."""
    tokens = np.arange(100, 124, dtype=np.uint16)
    begins = np.array([c == "1" for c in "011011110010111010110111"])
    lengths = np.array([11, 0, 1, 12], dtype=np.uint32)
    golden = {
        1: "4 5 6 2 3 10 7 8 9 0 1 11 23 14 15 13 12 22 16 17 21 19 20 18",
        2: "7 8 9 10 5 6 0 1 2 3 4 11 21 22 12 13 23 18 19 20 14 15 16 17",
        3: "7 8 9 10 0 1 2 3 4 5 6 11 12 13 14 15 16 17 18 19 20 21 22 23",
    }
    for n, wanted in golden.items():
        found = shuffle_ngrams(tokens, lengths, begins, n, (1, 2), 5) - 100
        assert " ".join(map(str, found.tolist())) == wanted
