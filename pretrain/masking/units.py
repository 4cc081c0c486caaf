"""Masking strategies: each one cuts a row into units that are selected as a whole.

Units are runs of ordinary tokens. A special token ends the unit before it, so a document's end does too. A unit begins
at a word start. Only a word with more tokens than a unit may have is cut.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pretrain.masking.rows import Rows
from pretrain.masking.selection import of_columns
from pretrain.philox import Key

_LONG_WORD = 8  # longest word in tokens that is never cut


@dataclass(frozen=True)
class RowText:
    """Rows, as input of a strategy. ordinary [R, S] bool: tokens that may be selected."""

    rows: Rows
    ordinary: NDArray[np.bool_]

    def __getitem__(self, rows: NDArray[np.int64]) -> "RowText":
        return RowText(self.rows[rows], self.ordinary[rows])

    @cached_property
    def begins_run(self) -> NDArray[np.bool_]:
        """[R, S] ordinary tokens that begin a row or follow a special one."""
        begins = self.ordinary.copy()
        begins[:, 1:] &= ~self.ordinary[:, :-1]
        return begins

    @property
    def begins_word(self) -> NDArray[np.bool_]:
        """[R, S] ordinary tokens that begin a word, or the rest of one after a special token."""
        return self.ordinary & (self.rows.word_starts | self.begins_run)


@dataclass(frozen=True)
class TokenUnits:
    """Units are single tokens (Devlin et al., "BERT", 2019)."""

    longest: int = 1

    def begins(self, text: RowText, key: Key) -> NDArray[np.bool_]:
        return text.ordinary


@dataclass(frozen=True)
class WholeWords:
    """Units are words (Devlin et al., github.com/google-research/bert, May 2019)."""

    longest: int = _LONG_WORD

    def begins(self, text: RowText, key: Key) -> NDArray[np.bool_]:
        return text.begins_word


@dataclass(frozen=True)
class SpanUnits:
    """Units are spans of words with lengths from a truncated geometric distribution.

    Joshi et al., "SpanBERT", TACL 2020: p = 0.2 and at most 10 words, 3.8 on average. SpanBERT draws spans until enough
    tokens are selected, and spans may overlap. Here the whole text is cut into consecutive spans, and some of them are
    selected. Spans are shorter at the ends of documents.
    """

    p: float
    max_words: int

    @property
    def longest(self) -> int:
        """A span of one long word, the others with one token each."""
        return self.max_words - 1 + _LONG_WORD

    def begins(self, text: RowText, key: Key) -> NDArray[np.bool_]:
        words = np.flatnonzero(text.begins_word)  # slots of the stream
        draws = of_columns(key, text.rows.row_ids, text.ordinary.shape[1]).reshape(-1)[words]
        # Span j of a run has the length drawn for word j, so the next span begins after the sum of the lengths up to j.
        before = np.concatenate([[0], np.cumsum(self._lengths[draws], dtype=np.int64)])
        first = np.flatnonzero(text.begins_run.reshape(-1)[words])  # the first word of each run
        n_words = np.diff(first, append=len(words))
        following = before[1:] + np.repeat(first - before[first], n_words)
        inside = following < np.repeat(first + n_words, n_words)
        begins = np.zeros(text.ordinary.size, dtype=np.bool_)
        begins[words[np.concatenate([first, following[inside]])]] = True
        return begins.reshape(text.ordinary.shape)

    @cached_property
    def _lengths(self) -> NDArray[np.uint8]:
        """[2**16] the length for each 16-bit draw."""
        beyond = (1 - self.p) ** np.arange(1, self.max_words)
        bounds = np.round((1 - beyond) / (1 - (1 - self.p) ** self.max_words) * 2**16)
        return (1 + np.searchsorted(bounds, np.arange(2**16), side="right")).astype(np.uint8)


Strategy = TokenUnits | WholeWords | SpanUnits
"""Rule that cuts rows into units: a pure function of the rows and the keys.

longest: the largest number of tokens in a unit. begins(text, key): [R, S] where units begin, before units longer than
`longest` are cut.
"""


def cut(strategy: Strategy, text: RowText, key: Key) -> NDArray[np.bool_]:
    """Begins of the units of a strategy [R, S]. Units that are too long are cut: the longest pieces and a rest."""
    begins, longest = strategy.begins(text, key), strategy.longest
    starts = np.flatnonzero(begins | ~text.ordinary)
    lengths = np.diff(starts, append=begins.size)
    long = np.flatnonzero(lengths > longest)
    if not len(long):
        return begins
    begins = begins.copy()
    pieces = (lengths[long] - 1) // longest
    number = concatenated_ranges(np.ones_like(pieces), pieces)
    begins.reshape(-1)[np.repeat(starts[long], pieces) + longest * number] = True
    return begins


def concatenated_ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate the ranges starts[i] .. starts[i] + lengths[i] - 1: int64 [sum of lengths]; lengths >= 1."""
    steps = np.ones(int(lengths.sum()), dtype=np.int64)
    if len(steps):
        steps[0] = starts[0]
        steps[np.cumsum(lengths[:-1])] = starts[1:] - starts[:-1] - lengths[:-1] + 1
    return np.cumsum(steps, out=steps)
