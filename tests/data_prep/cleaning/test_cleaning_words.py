"""Hashes of words and n-grams: definition of a word, formula of the hash, and separate texts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.cleaning.word_hashes import (
    BATCH_CHARACTERS,
    BATCH_TEXTS,
    batches,
    ngram_starts,
    ngrams,
    parts,
    split_words,
    word_hashes,
)

MASK = 2**64 - 1


def mixed(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def hash_of(word: str) -> int:
    """The documented formula, in Python's integers."""
    return mixed(sum(mixed(ord(c)) * pow(0x9E3779B97F4A7C15, k, 1 << 64) for k, c in enumerate(word)) & MASK)


def test_hashes_follow_the_formula():
    text = "the Quick brown 東 fox's été"
    words = ["the", "quick", "brown", "東", "fox", "s", "été"]
    hashes, per_text = word_hashes([text])
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [hash_of(word) for word in words]
    assert per_text.tolist() == [7]
    assert hash_of("the") == 0x788DD811FF091D92  # the same on every machine


@pytest.mark.parametrize(
    "text,words",
    [
        ("", []),
        (" \t\n.,;--\u2014\u00a0\ufeff", []),
        ("Don't stop_here, now", ["don", "t", "stop", "here", "now"]),
        ("“quoted”…and—dashed", ["quoted", "and", "dashed"]),
        ("x86 3rd ½", ["x86", "3rd", "½"]),
        ("ΣΊΣΥΦΟΣ Жук ÀÉ", ["σίσυφοσ", "жук", "àé"]),
        ("हिन्दी शब्द।", ["हिन्दी", "शब्द"]),
        ("مرحبا، عالم", ["مرحبا", "عالم"]),
        ("東京、日本abc", ["東", "京", "日", "本", "abc"]),
        ("ひらカタ", ["ひ", "ら", "カ", "タ"]),
        ("ก ข", ["ก", "ข"]),
        ("\U0001f600smile\U0001f680", ["smile"]),
        ("\U00020000\U00020001", ["\U00020000", "\U00020001"]),
        ("broken\ud800half", ["broken", "half"]),
    ],
)
def test_what_a_word_is(text, words):
    assert word_hashes([text])[0].tolist() == [hash_of(word) for word in words]


@given(st.lists(st.text(alphabet="aB1é東 .'\n", max_size=12), max_size=8))
@settings(deadline=None)
def test_words_do_not_depend_on_their_surroundings(texts):
    words = split_words(texts)
    alone = [split_words([text]) for text in texts]
    assert words.per_text.tolist() == [len(each.hashes) for each in alone]
    for name in ("hashes", "characters"):
        joined = [value for each in alone for value in getattr(each, name).tolist()]
        assert getattr(words, name).tolist() == joined
    assert int(words.characters.sum()) == sum(c.isalnum() for text in texts for c in text)


@pytest.mark.parametrize("separator", [" ", "\n", "—"])
def test_long_texts(separator):
    many = [f"w{index * 7919 % 1000}" for index in range(120_000)]
    hashes, per_text = word_hashes(["before", separator.join(many), "after"])
    by_word = {word: hash_of(word) for word in set(many)}
    expected = [hash_of("before"), *(by_word[word] for word in many), hash_of("after")]
    if separator == "—":  # cut after 131,072 characters without a space, at most once each
        assert abs(len(hashes) - len(expected)) <= 5
    else:
        assert hashes.tolist() == expected
        assert per_text.tolist() == [1, len(many), 1]
    again = word_hashes(["x" * 100_000, separator.join(many)])
    assert (again[0][1:] == hashes[1:-1]).all()  # the cuts depend on the text alone


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=6), max_size=6), st.integers(1, 4))
@settings(deadline=None)
def test_ngrams(texts, n):
    hashes, per_text = word_hashes([" ".join(words) for words in texts])
    found, owners = ngrams(hashes, per_text, n)
    expected = [(i, tuple(w[k : k + n])) for i, w in enumerate(texts) for k in range(len(w) - n + 1)]
    assert owners.tolist() == [owner for owner, _ in expected]
    assert len({(gram, value) for (_, gram), value in zip(expected, found.tolist(), strict=True)}) == len(
        {gram for _, gram in expected}
    )
    assert len(set(found.tolist())) == len({gram for _, gram in expected})
    flat = [word for words in texts for word in words]
    assert [tuple(flat[s : s + n]) for s in ngram_starts(per_text, n)] == [gram for _, gram in expected]


def test_order_of_words_matters():
    orders = ["a b c d", "d c b a", "b a c d", "a c b d"]
    assert len({int(ngrams(*word_hashes([text]), 4)[0][0]) for text in orders}) == 4


def test_parts_have_each_ngram_once(monkeypatch):
    monkeypatch.setattr("data_prep.cleaning.word_hashes.PART_WORDS", 10)
    for length in (0, 3, 4, 10, 13, 14, 57):
        words = np.arange(length, dtype=np.uint64), np.array([length])
        pieces = [ngrams(hashes, per_text, 4)[0] for hashes, per_text in parts(*words, 4)]
        assert all(len(piece) <= 10 for piece in pieces)
        assert np.concatenate(pieces).tolist() == ngrams(*words, 4)[0].tolist()
    several = np.arange(40, dtype=np.uint64), np.array([20, 20])
    assert len(list(parts(*several, 4))) == 1


def test_batches():
    texts = ["a" * size for size in (BATCH_CHARACTERS, 1, 2 * BATCH_CHARACTERS, 5, 6)] + [""] * (BATCH_TEXTS + 3)
    found = list(batches(texts))
    assert [text for batch in found for text in batch] == texts
    assert [len(batch) for batch in found[:3]] == [1, 1, 1]
    assert [len(batch) for batch in found[3:]] == [BATCH_TEXTS, 5]
    assert list(batches([])) == []
