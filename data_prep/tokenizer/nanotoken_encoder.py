"""WordPiece with the `nanotoken` package. Its word cache holds 2^20 words at most, some 250 MB."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from data_prep.tokenizer.encoder_base import Arrays, cut_pattern, encode_in_chunks, without_specials

CHUNK_CHARACTERS = 1 << 24


class NanotokenEncoder:
    """Encodes on the calling thread; for tokenizers whose vocabulary tells the word starts."""

    name = "nanotoken"

    def __init__(self, settings: dict[str, Any]) -> None:
        from nanotoken import WordPieceTokenizer

        self._cut = cut_pattern(settings)
        self._encode = WordPieceTokenizer.from_json(json.dumps(without_specials(settings))).encode_batch

    def takes(self, text: str) -> bool:
        return True

    def __call__(self, texts: Sequence[str]) -> Arrays:
        return encode_in_chunks(texts, self._cut, self._encode_chunk, CHUNK_CHARACTERS)

    def _encode_chunk(self, texts: Sequence[str]) -> Arrays:
        ids, offsets = self._encode(texts, add_special_tokens=False, parallel=False)
        return ids, np.diff(offsets), None
