"""Texts to ids, with the tokenizers library or, where its ids are proven equal, a faster package."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from data_prep.format import TokenizerInfo

PARITY_CHARACTERS = 1 << 20  # of one text: enough to compare encoders, and seconds with the slow one
PIECE_CHARACTERS = 1 << 20  # longer documents are encoded in pieces: an Encoding takes some 30 times its text
_CUT = re.compile(r"(?<=\S) (?=\S)")


class Encoder(Protocol):
    """Ids [n_tokens] of one text after the other, lengths [n_texts], and word starts bool [n_tokens] or None."""

    name: str

    def __call__(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]: ...


class HuggingFaceEncoder:
    """Encodes with the tokenizers library; `with_word_starts` also reports the first token of each pre-token."""

    name = "tokenizers"

    def __init__(self, tokenizer: Tokenizer, with_word_starts: bool) -> None:
        self._with_word_starts = with_word_starts
        # The fast variant does not keep track of words.
        self._encode = tokenizer.encode_batch if with_word_starts else tokenizer.encode_batch_fast

    def __call__(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        ids: list[np.ndarray] = []
        starts: list[np.ndarray] = []
        lengths = np.zeros(len(texts), dtype=np.int64)
        for index, text in enumerate(texts):
            for piece in _pieces(text):
                encoding = self._encode([piece], add_special_tokens=False)[0]
                ids.append(np.array(encoding.ids, dtype=np.uint32))
                lengths[index] += len(ids[-1])
                if self._with_word_starts:
                    starts.append(_word_starts(encoding.word_ids))
        return _joined(ids, np.uint32), lengths, _joined(starts, bool) if self._with_word_starts else None


class NanotokenEncoder:
    """Encodes WordPiece with the `nanotoken` package, on the calling thread."""

    name = "nanotoken"

    def __init__(self, tokenizer: Tokenizer) -> None:
        from nanotoken import WordPieceTokenizer

        settings = json.loads(tokenizer.to_str())
        # Without its special tokens, it takes text that spells one for text.
        settings["added_tokens"] = [token for token in settings["added_tokens"] if not token["special"]]
        self._encode = WordPieceTokenizer.from_json(json.dumps(settings)).encode_batch

    def __call__(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        ids, offsets = self._encode(texts, add_special_tokens=False, parallel=False)
        return ids, np.diff(offsets), None


def choose_encoder(tokenizer: Tokenizer, info: TokenizerInfo, sample: Sequence[str]) -> tuple[Encoder, str]:
    """The fastest encoder that gives the tokenizers library's ids on `sample`, and why a faster one was left out."""
    reference = HuggingFaceEncoder(tokenizer, with_word_starts=info.continuation_prefix is None)
    if info.continuation_prefix is None:
        return reference, ""
    try:
        fast = NanotokenEncoder(tokenizer)
        probe = [
            *(text[:PARITY_CHARACTERS] for text in sample),
            " ".join(str(tokenizer.id_to_token(id)) for id in info.all_special_ids),
        ]
        same = all(np.array_equal(a, b) for a, b in zip(reference(probe)[:2], fast(probe)[:2], strict=True))
    except ModuleNotFoundError:
        return reference, ""
    except Exception as error:  # a young package: whatever it raises, the ids can still be had
        return reference, f"nanotoken is not used: {error}"
    return (fast, "") if same else (reference, "nanotoken is not used: its ids differ from the tokenizers library's")


def _pieces(text: str) -> Iterator[str]:
    """The text cut before single spaces, where no pre-tokenizer in use joins what lies on both sides."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS and (cut := _CUT.search(text, start + PIECE_CHARACTERS)):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def _word_starts(word_ids: list[int | None]) -> np.ndarray:
    words = np.array([-1 if word is None else word for word in word_ids], dtype=np.int64)
    return np.diff(words, prepend=-2) != 0


def _joined(parts: list[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)
