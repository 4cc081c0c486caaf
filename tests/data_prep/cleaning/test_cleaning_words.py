"""Hashes of words and n-grams: definition of a word, formula of the hash, and separate texts."""

import numpy as np
import pytest

from data_prep.cleaning.word_hashes import split_words

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
    hashes, characters, per_text = split_words([text])
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [hash_of(word) for word in words]
    assert characters.tolist() == list(map(len, words))
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
    assert split_words([text]).hashes.tolist() == [hash_of(word) for word in words]


@pytest.mark.parametrize("separator", [" ", "\n", "—"])
def test_long_texts(separator):
    many = [f"w{index * 7919 % 1000}" for index in range(120_000)]
    hashes, _, per_text = split_words(["before", separator.join(many), "after"])
    by_word = {word: hash_of(word) for word in set(many)}
    expected = [hash_of("before"), *(by_word[word] for word in many), hash_of("after")]
    if separator == "—":  # cut after 131,072 characters without a space, at most once each
        assert abs(len(hashes) - len(expected)) <= 5
    else:
        assert hashes.tolist() == expected
        assert per_text.tolist() == [1, len(many), 1]
    again = split_words(["x" * 100_000, separator.join(many)])
    assert (again.hashes[1:] == hashes[1:-1]).all()  # the cuts depend on the text alone
