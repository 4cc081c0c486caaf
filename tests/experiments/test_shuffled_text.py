"""Text with shuffled words: the documents of a data set, each with its own n-grams in a random order."""

from collections import Counter
from itertools import permutations

from experiments.shuffled_text import documents, shuffled
from tests.support.wordpiece_set import SHIP, wordpiece_set


def test_the_documents_are_those_of_the_data_set(tmp_path):
    dataset = wordpiece_set(tmp_path / "set", [[SHIP, [8, 9], SHIP[:2]], [[5]]], [])  # several blocks
    texts = [" ".join(text.split()) for text in documents(dataset)]
    assert texts == ["the ships sailed", "sailed", "the ship", "the"]


def test_each_order_of_ngrams_is_equally_likely_and_keyed():
    words = ["a", "b", "c", "d", "e", "f", "g"]
    assert shuffled(words, 3, 5) == shuffled(words, 3, 5)
    assert shuffled([], 2, 0) == []
    orders = Counter(" ".join(shuffled(words, 3, key)) for key in range(6000))
    assert set(orders) == {" ".join(order) for order in permutations(["a b c", "d e f", "g"])}
    assert sum((seen - 1000) ** 2 / 1000 for seen in orders.values()) < 20.5  # chi-square, 5 degrees of freedom
