"""Sentences as a model's tokenizer sees them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain.export import ids_around


@dataclass(frozen=True)
class EncodedSentence:
    """ids [L] int64: tokens without specials. words [L] int64: the number of the word that each is in."""

    ids: NDArray[np.int64]
    words: NDArray[np.int64]


@dataclass(frozen=True)
class SentenceTokenizer:
    """A tokenizer, and the ids that stand around a sentence and in the place of its tokens.

    first: before a sentence. last: after it; None after what a causal model reads.
    mask: in the place of a token; None where nothing is masked.
    """

    backend: Any
    first: int
    last: int | None
    mask: int | None

    def __call__(self, texts: Sequence[str]) -> list[EncodedSentence]:
        """Words are what `word_ids` of the tokenizer says, or are split at spaces where that takes a text for one."""
        encodings = self.backend.encode_batch(list(texts), add_special_tokens=False)
        return [
            EncodedSentence(np.array(encoding.ids, dtype=np.int64), _words(encoding, text))
            for encoding, text in zip(encodings, texts, strict=True)
        ]

    def vocabulary(self) -> dict[str, int]:
        """The id of each token, added tokens included."""
        found: dict[str, int] = self.backend.get_vocab(with_added_tokens=True)
        return found


def open_tokenizer(tokenizer: Any, folder: Path, causal: bool) -> SentenceTokenizer:
    """The tokenizer of transformers in a folder, for a masked or a causal model.

    What looks like a special token in a sentence is text, as it was when the data were prepared.

    Raises:
        UserError: if it lacks a special token that is needed.
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
    # SentencePiece without a pre-tokenizer takes a text for one word.
    around = (text[max(start - 1, 0) : start + 1] for start, _ in encoding.offsets)
    return np.cumsum([any(character.isspace() for character in characters) for characters in around])
