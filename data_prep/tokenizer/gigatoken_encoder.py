"""BPE with the `gigatoken` package, on the calling thread and in bounded memory."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from data_prep.cleaning.word_hashes import mix
from data_prep.tokenizer.encoder_base import Arrays, WordRule, cut_pattern, encode_in_chunks, without_specials
from data_prep.tokenizer.unicode_versions import is_settled

CHUNK_CHARACTERS = 1 << 22
MAX_WORDS = 1 << 21  # distinct words of several tokens before the cache is thrown away: it takes some 75 bytes a word


class GigatokenEncoder:
    """Encodes byte-level BPE, and SentencePiece's BPE with byte fallback.

    gigatoken keeps every word that it has met, without limit, and cannot forget one; so the distinct words are
    counted, and beyond MAX_WORDS a new tokenizer takes the old one's place.
    """

    name = "gigatoken"

    def __init__(self, settings: dict[str, Any], words: WordRule) -> None:
        self._words = words
        self._cut = cut_pattern(settings)
        self._json = json.dumps(without_specials(settings))
        self._renew()

    def _renew(self) -> None:
        from gigatoken import Tokenizer

        self._tokenizer = Tokenizer.from_json(self._json)
        self._met = DistinctWords(MAX_WORDS)

    def takes(self, text: str) -> bool:
        return is_settled(text)

    def __call__(self, texts: Sequence[str]) -> Arrays:
        return encode_in_chunks(texts, self._cut, self._encode_chunk, CHUNK_CHARACTERS)

    def _encode_chunk(self, texts: Sequence[str]) -> Arrays:
        if self._met.full:
            self._renew()
        rows = self._tokenizer.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(rows.offsets)
        ids = np.asarray(rows.content.data)[offsets[0] : offsets[-1]]
        lengths = np.diff(offsets).astype(np.int64, copy=False)
        starts = self._words(ids, lengths)
        self._met.add(ids, starts)
        return ids, lengths, starts


class DistinctWords:
    """Counts distinct words of two tokens and more, roughly (linear counting, Whang et al. 1990, a byte a cell).

    Words of one token need no counting: they are no more than the vocabulary.
    """

    def __init__(self, limit: int) -> None:
        self._cells = np.zeros(2 * limit, dtype=bool)  # `limit` a power of two
        self._limit = limit
        self._unchecked = 0
        self.full = False

    def add(self, ids: np.ndarray, starts: np.ndarray) -> None:
        first = starts[:-1] & ~starts[1:]
        inside = ~starts
        inside[:-1] |= first
        word = starts[inside]
        if not len(word):
            return
        (begin,) = np.nonzero(word)
        place = np.arange(len(word)) - np.repeat(begin, np.diff(begin, append=len(word)))
        hashes = np.add.reduceat(mix(ids[inside] | place.astype(np.uint64) << np.uint64(32)), begin)
        self._cells[mix(hashes) & np.uint64(len(self._cells) - 1)] = True
        self._unchecked += len(hashes)
        if self._unchecked > self._limit // 8:
            self._unchecked = 0
            # n distinct words leave a share exp(-n / cells) of the cells empty.
            self.full = bool(np.count_nonzero(self._cells) > len(self._cells) * (1 - np.exp(-0.5)))
