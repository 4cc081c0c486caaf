"""Which tokens of a right text are not in the wrong text that it corrects: what cloze repair predicts.

Texts are compared word by word: the wrong text has a word as a whole or not at all, so a piece that differs, or is too
many there, makes targets of all tokens of the right word. A long word, as a clause is in scripts without spaces to a
tokenizer that splits at those alone, counts as as many words as it has tokens.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np

UNCHANGED = "unchanged"  # why a document without targets is left out
LONG_WORD = 8  # tokens of a word that is compared as a whole
_DIRECT = 1 << 12  # words of one text times words of the other, up to which they are not cut
MAX_PRODUCT = 1 << 16  # the most that is compared word by word: half a second at worst, some milliseconds as a rule
_RUN = 4  # words in a row by which longer texts are laid side by side

Arrays = tuple[
    np.ndarray, np.ndarray, np.ndarray | None
]  # what an encoder gives, see data_prep/tokenizer/encoder_base.py
Words = Sequence[Hashable]


def targets_of(right: Arrays, wrong: Arrays, begins_word: np.ndarray | None) -> np.ndarray:
    """Whether each token of the right texts is a target, bool [n_tokens].

    Args:
        right, wrong: as many texts, encoded.
        begins_word: bool [vocab_size] where the encoded texts have no word starts.
    """
    found = np.zeros(len(right[0]), dtype=bool)
    start = 0
    for right_ends, wrong_words in zip(_word_ends(right, begins_word), _texts(wrong, begins_word), strict=True):
        ends = right_ends - start
        ids = right[0][start : start + (ends[-1] if len(ends) else 0)]
        for first, last in missing(_words(ids, ends), wrong_words):
            found[start + (ends[first - 1] if first else 0) : start + ends[last - 1]] = True
        start += len(ids)
    return found


def missing(right: Words, wrong: Words) -> Iterator[tuple[int, int]]:
    """The ranges [first, last) of the words of `right` that the alignment does not find in `wrong`, in order."""
    return ((first, last) for first, last, _, _ in differences(right, wrong) if first < last)


def differences(right: Words, wrong: Words) -> Iterator[tuple[int, int, int, int]]:
    """Where an alignment finds words of `right`, [first, last), in the place of those of `wrong`, [start, end).

    In order; one of the two ranges may be empty. What both begin and end with is equal. Longer texts are then cut at
    runs of words that stand once in each, in an order that both have (as in Cohen's patience diff), and the parts are
    aligned by difflib's SequenceMatcher. A part whose numbers of words have a product above MAX_PRODUCT is taken as
    wholly different: the cost grows with the length of the texts, not with its square.
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
    elif whole and (i_end - i) * (j_end - j) > _DIRECT:
        anchors = [(i, j), *_anchors(right, wrong, i, i_end, j, j_end), (i_end, j_end)]
        for (here, there), (next_here, next_there) in pairwise(anchors):
            yield from _differences(right, wrong, here, next_here, there, next_there, whole=False)
    elif (i_end - i) * (j_end - j) > MAX_PRODUCT:
        yield i, i_end, j, j_end
    else:
        matcher = SequenceMatcher(None, wrong[j:j_end], right[i:i_end], autojunk=False)
        for kind, start, end, first, last in matcher.get_opcodes():
            if kind != "equal":
                yield i + first, i + last, j + start, j + end


def _anchors(right: Words, wrong: Words, i: int, i_end: int, j: int, j_end: int) -> list[tuple[int, int]]:
    """Places of words in both, rising in both, at which runs of words begin that stand once in either."""
    here, there = _single_runs(right, i, i_end), _single_runs(wrong, j, j_end)
    places = [(place, there[run]) for run, place in here.items() if run in there]
    return _longest_rising(places)


def _single_runs(words: Words, first: int, last: int) -> dict[tuple[Hashable, ...], int]:
    """Where each run of words begins that stands once in the range, in order."""
    runs = [tuple(words[place : place + _RUN]) for place in range(first, last - _RUN + 1)]
    counts = Counter(runs)
    return {run: place for place, run in enumerate(runs, first) if counts[run] == 1}


def _longest_rising(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of pairs, ordered by their first numbers, whose second numbers rise too."""
    ends: list[int] = []  # the least last number of a rising part of each length
    numbers: list[int] = []  # which pair that is
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


def _texts(encoded: Arrays, begins_word: np.ndarray | None) -> Iterator[Words]:
    """The words of each text."""
    start = 0
    for ends in _word_ends(encoded, begins_word):
        stop = int(ends[-1]) if len(ends) else start
        yield _words(encoded[0][start:stop], ends - start)
        start = stop


def _words(ids: np.ndarray, ends: np.ndarray) -> Words:
    """The bytes of the ids of each word, which are equal where the ids are."""
    data, size = ids.tobytes(), ids.itemsize
    bounds = [0, *(size * ends).tolist()]
    return [data[first:last] for first, last in pairwise(bounds)]


def _word_ends(encoded: Arrays, begins_word: np.ndarray | None) -> Iterator[np.ndarray]:
    """For each text, the place in the batch past each of its words, int64 [words]; none for a text without tokens."""
    ids, lengths, starts = encoded
    if starts is None:
        assert begins_word is not None  # else encoders tell
        starts = begins_word[ids]
    stops = np.cumsum(lengths)
    begins = np.append(starts, True)
    begins[stops - lengths] = begins[stops] = True
    places = np.flatnonzero(begins)
    sizes = np.diff(places)
    long = sizes > LONG_WORD
    inside = np.repeat(long, sizes)
    begins[:-1] |= inside
    ends = np.flatnonzero(begins[1:]) + 1
    cuts = np.searchsorted(ends, stops, side="right")
    first = 0
    for cut in cuts.tolist():
        yield ends[first:cut]
        first = cut
