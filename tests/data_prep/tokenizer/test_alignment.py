"""Alignment of text pairs: which tokens of the right text are targets."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.tokenizer import LONG_WORD, alignment, targets_of, word_differences
from data_prep.tokenizer.alignment import DIRECT_PRODUCT, MAX_PRODUCT

VOCABULARY = ["the", "ship", "##s", "sail", "##ed", "##ing", "a", "red"]
BEGINS = np.array([not token.startswith("##") for token in VOCABULARY])


def missing(right, wrong) -> list[tuple[int, int]]:
    """The ranges of words of `right` that the alignment does not find in `wrong`."""
    return [(first, last) for first, last, _, _ in word_differences(right, wrong) if first < last]


def encoded(*texts: str) -> tuple[np.ndarray, np.ndarray, None]:
    documents = [[VOCABULARY.index(token) for token in text.split()] for text in texts]
    ids = np.array([id for document in documents for id in document], np.uint32)
    return ids, np.array([len(document) for document in documents], np.int64), None


def marked(right: str, wrong: str) -> str:
    """The right text, with its targets in brackets."""
    targets = targets_of(encoded(right), encoded(wrong), BEGINS)
    return " ".join(f"[{token}]" if target else token for token, target in zip(right.split(), targets, strict=True))


@pytest.mark.parametrize("wrong, right, wanted", [
    ("the ship sail", "the ship sail", "the ship sail"),
    ("the ship sail", "the red ship sail", "the [red] ship sail"),
    ("a ship sail", "the ship sail", "[the] ship sail"),
    ("the red ship sail", "the ship sail", "the ship sail"),
    ("the ship ##s sail", "the ship sail", "the [ship] sail"),
    ("the ship sail ##ed a", "the ship sail ##ing a", "the ship [sail] [##ing] a"),
    ("the ship", "the ship ##s sail", "the [ship] [##s] [sail]"),
    ("", "the ship", "[the] [ship]"),
    ("the ship", "", ""),
    ("", "", ""),
    ("the the ship", "the ship", "the ship"),
    ("ship the", "the ship", "[the] ship"),
])  # fmt: skip
def test_words_that_the_wrong_text_has_not(wrong, right, wanted):
    assert marked(right, wrong) == wanted


def test_texts_of_a_batch_do_not_mix():
    right = encoded("the ship", "", "a red ship ##s", "sail", "")
    wrong = encoded("a ship", "the", "a red ship", "sail", "sail")
    assert targets_of(right, wrong, BEGINS).tolist() == [True, False, False, False, True, True, False]


def test_word_starts_of_the_encoder_come_first():
    """As with byte-level tokens: the same ids are other words where words begin elsewhere."""
    ids, lengths = np.arange(4, dtype=np.uint32), np.array([4])
    right = ids, lengths, np.array([True, False, True, True])
    wrong = np.array([0, 9, 2, 3], np.uint32), lengths, np.array([True, False, True, True])
    assert targets_of(right, wrong, None).tolist() == [True, True, False, False]


def test_a_long_word_counts_as_its_tokens():
    right, wrong = np.arange(LONG_WORD + 1, dtype=np.uint32), np.arange(LONG_WORD + 1, dtype=np.uint32)
    wrong[3] = 99
    for size, wanted in ((LONG_WORD + 1, 1), (LONG_WORD, LONG_WORD)):
        starts = np.zeros(size, bool)
        pair = [(ids[:size], np.array([size]), starts) for ids in (right, wrong)]
        assert targets_of(*pair, None).sum() == wanted


WORDS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=30)


@given(WORDS, WORDS, st.sampled_from([(DIRECT_PRODUCT, MAX_PRODUCT), (0, 0), (0, 4), (0, 100)]))
def test_differences_turn_the_wrong_text_into_the_right_one(right, wrong, limits):
    """Also where texts are cut, or too long to compare."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "DIRECT_PRODUCT", limits[0])
        patch.setattr(alignment, "MAX_PRODUCT", limits[1])
        differences = list(word_differences(right, wrong))
    made, done = [], 0
    for first, last, start, end in differences:
        assert first < last or start < end
        assert right[len(made) : first] == wrong[done:start]
        made += wrong[done:start] + right[first:last]
        done = end
    assert made + wrong[done:] == right
    assert right != wrong or not differences


def test_a_long_document_takes_linear_time_and_finds_its_differences():
    rng = np.random.default_rng(0)
    right = [bytes([a, b]) for a, b in rng.integers(0, 25, size=(100_000, 2)).tolist()]
    wrong, changed = list(right), rng.choice(100_000, size=2000, replace=False)
    for place in changed.tolist():
        wrong[place] = b"?"
    begin = time.perf_counter()
    places = [place for first, last in missing(right, wrong) for place in range(first, last)]
    assert time.perf_counter() - begin < 20  # a second or two; compared directly, it would be hours
    assert places == sorted(changed.tolist())


def test_what_repeats_itself_does_not_mislead():
    """A refrain is twice in the right text, once in the wrong one. The text between decides which one matches."""
    refrain, verse = [b"r%d" % n for n in range(60)], [b"v%d" % n for n in range(6)]
    right = [b"p", *refrain, *verse, *refrain, b"q"]
    wrong = [b"x", *refrain, *verse, b"y"]
    assert missing(right, wrong) == [(0, 1), (67, 128)]


def test_what_is_too_long_to_compare_is_different():
    size = int(MAX_PRODUCT**0.5) + 1
    right, wrong = [b"x", *[b"a", b"b"] * size, b"y"], [b"x", *[b"b", b"c"] * size, b"y"]
    assert missing(right, wrong) == [(1, 1 + 2 * size)]
