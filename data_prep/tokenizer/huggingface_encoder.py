"""Encoding with the tokenizers library: the definition of what the ids are."""

import json
from collections.abc import Sequence

import numpy as np
from tokenizers import Encoding, Tokenizer

from data_prep.tokenizer.encoder_base import Arrays, WordRule, cut_pattern, encode_in_chunks


class HuggingFaceEncoder:
    """Encodes with the tokenizers library. Word starts come from `words`, or with "word_ids" from the library."""

    name = "tokenizers"

    def __init__(self, tokenizer: Tokenizer, words: WordRule | str | None) -> None:
        self._words = words
        self._cut = cut_pattern(json.loads(tokenizer.to_str()))
        # The fast variant does not keep track of words.
        self._encode = tokenizer.encode_batch if words == "word_ids" else tokenizer.encode_batch_fast

    def __call__(self, texts: Sequence[str]) -> Arrays:
        return encode_in_chunks(texts, self._cut, self._encode_chunk)

    def _encode_chunk(self, texts: Sequence[str]) -> Arrays:
        encodings = self._encode(texts, add_special_tokens=False)
        lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
        ids = _joined([np.array(encoding.ids, dtype=np.uint32) for encoding in encodings], np.dtype(np.uint32))
        if callable(self._words):
            return ids, lengths, self._words(ids, lengths)
        if self._words is None:
            return ids, lengths, None
        return ids, lengths, _joined([_word_starts(encoding) for encoding in encodings], np.dtype(bool))


def _word_starts(encoding: Encoding) -> np.ndarray:
    words = np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int64)
    return np.diff(words, prepend=-2) != 0


def _joined(parts: list[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)
