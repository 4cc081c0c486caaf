"""Find the tokens of a right text that are not in the wrong text that it corrects: the targets of cloze repair.

Texts are compared by words. If a word of the right text is not in the wrong text, all its tokens are targets. The
tokens of a long word count as separate words: in scripts without spaces, a clause can be one word.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np

from data_prep.tokenizer.encoders import Arrays

LONG_WORD = 8  # most tokens of a word that is compared as a whole
DIRECT_PRODUCT = 1 << 12  # product of the word counts of two texts; longer texts are cut
MAX_PRODUCT = 1 << 16  # largest product that is compared by words: half a second at worst, usually milliseconds
_RUN = 4  # words of a run that anchors longer texts

Words = Sequence[Hashable]


def targets_of(right: Arrays, wrong: Arrays, begins_word: np.ndarray | None) -> np.ndarray:
    """Whether each token of the right texts is a target, bool [n_tokens].

    Args:
        right, wrong: the same number of encoded texts.
        begins_word: bool [vocab_size], needed if the encoded texts have no word starts.
    """
    targets = np.zeros(len(right[0]), dtype=bool)
    for (bounds, words), (_, wrong_words) in zip(_texts(right, begins_word), _texts(wrong, begins_word), strict=True):
        for first, last, _, _ in word_differences(words, wrong_words):
            targets[bounds[first] : bounds[last]] = True
    return targets


def word_differences(right: Words, wrong: Words) -> Iterator[tuple[int, int, int, int]]:
    """Aligned differences (first, last, start, end): words [first, last) of `right` replace [start, end) of `wrong`.

    They are in order; one of the two ranges may be empty. A common beginning and end are skipped. Longer texts are cut
    at runs of words that occur once in each text, in the same order (as in Cohen's patience diff), and difflib's
    SequenceMatcher aligns the parts. A part whose word counts have a product above MAX_PRODUCT counts as different, so
    the cost grows linearly with the length of the texts.
    """
    return _differences(right, wrong, 0, len(right), 0, len(wrong), whole=True)


def _differences(
    right: Words, wrong: Words, i: int, i_end: int, j: int, j_end: int, whole: bool
) -> Iterator[tuple[int, int, int, int]]:
    while i < i_end and j < j_end and right[i] == wrong[j]:
        i, j = i + 1, j + 1
    while i < i_end and j < j_end and right[i_end - 1] == wrong[j_end - 1]:
        i_end, j_end = i_end - 1, j_end - 1
    if i == i_end or j == j_end:
        if i < i_end or j < j_end:
            yield i, i_end, j, j_end
    elif whole and (i_end - i) * (j_end - j) > DIRECT_PRODUCT:
        here, there = _single_runs(right, i, i_end), _single_runs(wrong, j, j_end)
        anchors = _longest_rising([(place, there[run]) for run, place in here.items() if run in there])
        for (first, start), (last, end) in pairwise([(i, j), *anchors, (i_end, j_end)]):
            yield from _differences(right, wrong, first, last, start, end, whole=False)
    elif (i_end - i) * (j_end - j) > MAX_PRODUCT:
        yield i, i_end, j, j_end
    else:
        matcher = SequenceMatcher(None, wrong[j:j_end], right[i:i_end], autojunk=False)
        for kind, start, end, first, last in matcher.get_opcodes():
            if kind != "equal":
                yield i + first, i + last, j + start, j + end


def _single_runs(words: Words, first: int, last: int) -> dict[tuple[Hashable, ...], int]:
    """The start of each run of words that occurs once in the range, in order."""
    runs = [tuple(words[place : place + _RUN]) for place in range(first, last - _RUN + 1)]
    counts = Counter(runs)
    return {run: place for place, run in enumerate(runs, first) if counts[run] == 1}


def _longest_rising(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest subsequence of pairs with ascending second numbers. The first numbers are ascending."""
    ends: list[int] = []  # by length, the smallest last number of an ascending subsequence
    numbers: list[int] = []  # the indices of these pairs
    before: list[int] = []
    for number, (_, place) in enumerate(places):
        length = bisect_left(ends, place)
        before.append(numbers[length - 1] if length else -1)
        ends[length : length + 1], numbers[length : length + 1] = [place], [number]
    chain = []
    number = numbers[-1] if numbers else -1
    while number >= 0:
        chain.append(places[number])
        number = before[number]
    return chain[::-1]


def _texts(encoded: Arrays, begins_word: np.ndarray | None) -> Iterator[tuple[list[int], Words]]:
    """For each text, the bounds of its words in the batch, and the bytes of the ids of each word."""
    data, size = encoded[0].tobytes(), encoded[0].itemsize
    start = 0
    for ends in _word_ends(encoded, begins_word):
        bounds = [start, *ends.tolist()]
        yield bounds, [data[size * first : size * last] for first, last in pairwise(bounds)]
        start = bounds[-1]


def _word_ends(encoded: Arrays, begins_word: np.ndarray | None) -> Iterator[np.ndarray]:
    """For each text, the end of each of its words in the batch, int64 [words]."""
    ids, lengths, starts = encoded
    if starts is None:
        assert begins_word is not None
        starts = begins_word[ids]
    stops = np.cumsum(lengths)
    begins = np.append(starts, True)
    begins[stops - lengths] = begins[stops] = True
    places = np.flatnonzero(begins)
    sizes = np.diff(places)
    begins[:-1] |= np.repeat(sizes > LONG_WORD, sizes)
    ends = np.flatnonzero(begins[1:]) + 1
    first = 0
    for cut in np.searchsorted(ends, stops, side="right").tolist():
        yield ends[first:cut]
        first = cut
