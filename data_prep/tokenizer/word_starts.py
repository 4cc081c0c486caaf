"""Where words begin, told from the ids alone.

A word is a pre-token: what the tokenizer's pre-tokenizer splits off before the model sees the text, as counted by
`Encoding.word_ids` of the tokenizers library; an added token found in the text is a word of its own. Where the
pre-tokenizer does not split at spaces (SentencePiece tokenizers without one, for which a whole text is one word), a
word begins at the beginning of the text, at a space, whose mark "▁" belongs to the word after it, and at other white
space and after it.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from data_prep.tokenizer.byte_level_words import ByteLevelWords, added_ids, byte_tokens
from data_prep.tokenizer.encoder_base import WordRule, kinds

MARK = "▁"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def word_rule(tokenizer: Tokenizer, settings: dict[str, Any]) -> tuple[WordRule, bool]:
    """The rule of a tokenizer with these `settings` (its JSON), and whether it follows `word_ids`.

    It does not where a text is one word to those.

    Raises Unsupported where only the tokenizers library can tell.
    """
    model, types = settings["model"], kinds(settings["pre_tokenizer"])
    marked = model["type"] in ("BPE", "Unigram") and MARK in _vocabulary(model)
    if not _splits_at_spaces(tokenizer):
        if marked and "ByteLevel" not in types:
            texts = {id: _unescaped(token) for token, id in _vocabulary(model).items()}
        else:
            texts = {id: token.decode(errors="replace") for id, token in byte_tokens(settings).items()}
        return MarkedWords(texts, added_ids(settings), white_space=True), False
    if marked and _splits_at_marks(settings["pre_tokenizer"]):
        texts = {id: token for token, id in _vocabulary(model).items()}
        return MarkedWords(texts, added_ids(settings), white_space=False), True
    return ByteLevelWords(tokenizer, settings), True


class MarkedWords:
    """Words begin at tokens that begin with a mark; with `white_space`, also at other white space and after it."""

    def __init__(self, texts: Mapping[int, str], added: set[int], white_space: bool) -> None:
        size = max(*texts, *added, 0) + 1
        self._begins, self._ends = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        for id, text in texts.items():
            self._begins[id] = text.startswith(MARK) or (white_space and text[:1].isspace())
            self._ends[id] = white_space and text[-1:].isspace() and text[-1] != " "
        self._begins[list(added)] = self._ends[list(added)] = True

    def __call__(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Word starts bool [n_tokens] of `ids` [n_tokens], texts one after the other of `lengths` [n_texts]."""
        starts = self._begins[ids]
        starts[1:] |= self._ends[ids[:-1]]
        begin = np.cumsum(lengths) - lengths
        starts[begin[lengths > 0]] = True
        return starts


def _vocabulary(model: dict[str, Any]) -> dict[str, int]:
    if model["type"] == "Unigram":
        return {token: id for id, (token, _) in enumerate(model["vocab"])}
    return model["vocab"]


def _unescaped(token: str) -> str:
    """A token <0x0A>, which stands for a byte that the vocabulary has no character for, as that character."""
    match = _BYTE.fullmatch(token)
    return chr(int(match[1], 16)) if match and int(match[1], 16) < 0x80 else token


def _splits_at_spaces(tokenizer: Tokenizer) -> bool:
    text = "a b c"
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    return tokenizer.pre_tokenizer is not None and len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) > 1


def _splits_at_marks(pre_tokenizer: dict[str, Any]) -> bool:
    """Whether the splits are the marks and nothing else, so that no token but a word's first begins with one."""
    match pre_tokenizer:
        case {"type": "Metaspace", "replacement": "▁", "split": True}:
            return True
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "▁", "split": True, "prepend_scheme": "always"},
            ],
        }:
            return True
    return False
