"""Tokenize sentences with a model's own tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain.export import ids_around


@dataclass(frozen=True)
class EncodedSentence:
    """ids [L] int64: tokens without specials. words [L] int64: the word number of each token."""

    ids: NDArray[np.int64]
    words: NDArray[np.int64]


@dataclass(frozen=True)
class SentenceTokenizer:
    """A tokenizer and the special ids of its model.

    first: id before a sentence. last: id after it; None for causal models.
    mask: id of [MASK]; None for causal models.
    """

    backend: Any
    first: int
    last: int | None
    mask: int | None

    def __call__(self, texts: Sequence[str]) -> list[EncodedSentence]:
        """Encode texts. Words come from the tokenizer's `word_ids`, or from spaces if that reports only one word."""
        encodings = self.backend.encode_batch(list(texts), add_special_tokens=False)
        return [
            EncodedSentence(np.array(encoding.ids, dtype=np.int64), _words(encoding, text))
            for encoding, text in zip(encodings, texts, strict=True)
        ]

    def vocabulary(self) -> dict[str, int]:
        """The id of each token, added tokens included."""
        ids: dict[str, int] = self.backend.get_vocab(with_added_tokens=True)
        return ids


def open_tokenizer(tokenizer: Any, folder: Path, causal: bool) -> SentenceTokenizer:
    """Prepare the transformers tokenizer of a folder for a masked or causal model.

    Special-token strings in a sentence are encoded as plain text, as in data preparation.

    Raises:
        UserError: if the tokenizer lacks a required special token.
    """
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    ids = ids_around(tokenizer, folder, causal)
    return SentenceTokenizer(backend, ids["cls"], ids.get("sep"), ids.get("mask"))


def _words(encoding: Any, text: str) -> NDArray[np.int64]:
    """The number of each token's word [L]."""
    words = np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int64)
    if len(set(words.tolist())) > 1 or len(text.split()) < 2:
        return words
    # SentencePiece without a pre-tokenizer reports the whole text as one word.
    around = (text[max(start - 1, 0) : start + 1] for start, _ in encoding.offsets)
    return np.cumsum([any(character.isspace() for character in characters) for characters in around])
