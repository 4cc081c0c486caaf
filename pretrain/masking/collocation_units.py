"""PMI masking: units are the collocations of a list and the single words between them.

Levine et al., "PMI-Masking: Principled masking of correlated spans", ICLR 2021, arXiv:2010.01825. Where collocations
overlap, the first one wins, and the longest of those that begin together; the paper chooses any.
"""

import functools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from data_prep.format import Collocations, SpanHashes
from pretrain.masking.rows import Vocabulary
from pretrain.masking.units import RowText, longest_of
from pretrain.philox import Key

cached_collocations = functools.lru_cache(4)(Collocations.read)
"""Read a list once per process, so that it cannot change during a run."""


def collocations_of(path: Path, vocabulary: Vocabulary) -> "CollocationUnits":
    """The masking strategy of a collocation list.

    Raises:
        UserError: if the list is missing or was made with another tokenizer. DamagedData: if it is damaged.
    """
    collocations = cached_collocations(path)
    if collocations.tokenizer_sha256 != vocabulary.tokenizer_sha256 or collocations.tokens.max() >= vocabulary.size:
        raise UserError(
            f"{path} was made with another tokenizer than the data set; make a list from the data set with "
            "`maskwright prep collocations`, and set masking.collocations to it"
        )
    return CollocationUnits(collocations, vocabulary)


class CollocationUnits:
    """Units: each collocation, and each word outside collocations."""

    def __init__(self, collocations: Collocations, vocabulary: Vocabulary):
        self.longest = longest_of(int(collocations.n_words.max()))
        self._span_hashes = SpanHashes(vocabulary.is_ordinary)
        ends = np.cumsum(collocations.word_sizes)
        starts = ends - collocations.word_sizes
        begins = np.zeros(len(collocations.tokens), np.bool_)
        begins[starts] = True
        hashes = self._span_hashes.of(collocations.tokens, begins)
        after = np.cumsum(collocations.n_words)
        first = after - collocations.n_words
        whole, pairs = hashes(starts[first], ends[after - 1]), hashes(starts[first], ends[first + 1])
        self._hashes = {int(n): np.sort(whole[collocations.n_words == n]) for n in np.unique(collocations.n_words)}
        # Filter tables, indexed by the upper bits of a hash, avoid most searches. Bit n - 1 is set if the words may be
        # the first two, or all, of a listed n-gram.
        bits = (8 * len(whole)).bit_length()
        self._shift = np.uint64(64 - bits)
        self._pairs, self._whole = np.zeros(1 << bits, np.uint8), np.zeros(1 << bits, np.uint8)
        bit = np.left_shift(1, collocations.n_words - 1).astype(np.uint8)
        np.bitwise_or.at(self._pairs, pairs >> self._shift, bit)
        np.bitwise_or.at(self._whole, whole >> self._shift, bit)

    def begins(self, text: RowText, key: Key) -> NDArray[np.bool_]:
        words, count = text.words, len(text.words)
        if not count:
            return text.begins_word
        ends = np.append(words[1:], text.tokens.size)  # special tokens before the next word do not matter
        hashes = self._span_hashes.of(text.tokens.reshape(-1), text.begins_word.reshape(-1))
        lengths = self._pairs[hashes(words[:-1], ends[1:]) >> self._shift]
        hopeful = np.flatnonzero(lengths)
        lengths = lengths[hopeful]
        following = np.arange(1, count + 1)
        for n, known in self._hashes.items():
            at = hopeful[lengths & (1 << n - 1) != 0]
            at = at[at + n <= count]
            at = at[text.first_words[at] == text.first_words[at + n - 1]]
            found = hashes(words[at], ends[at + n - 1])
            likely = np.flatnonzero(self._whole[found >> self._shift] & (1 << n - 1))
            at, found = at[likely], found[likely]
            at = at[known[np.minimum(np.searchsorted(known, found), len(known) - 1)] == found]
            following[at] = at + n
        return text.begins_at(_reached(following))


def _reached(following: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the numbers reached from 0 by steps from each number to its larger `following` [W]."""
    furthest = np.maximum.accumulate(following)
    reached = np.append(True, furthest[:-1] == np.arange(1, len(following)))  # no earlier number leads past these
    now = np.flatnonzero(reached)
    while len(now):  # one pass per collocation of the longest overlapping stretch
        now = following[now]
        now = now[now < len(following)]
        now = now[~reached[now]]
        reached[now] = True
    return reached
