"""Compute where words begin from token ids.

A word is a pre-token: a part that the pre-tokenizer splits off before the model sees the text, as counted by
`Encoding.word_ids` of the tokenizers library. An added token in the text is one word. If the pre-tokenizer does not
split at spaces (as in SentencePiece tokenizers without one), a word begins at the start of the text, at a space (its
mark "▁" belongs to the next word), at other white space and after it.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from data_prep.tokenizer.byte_level_words import ByteLevelWords
from data_prep.tokenizer.pattern_words import PatternWords
from data_prep.tokenizer.token_bytes import WordRule, added_ids, byte_tokens, components

MARK = "▁"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def word_rule(tokenizer: Tokenizer, settings: dict[str, Any]) -> tuple[WordRule, bool]:
    """The word rule of a tokenizer with these `settings` (its JSON), and whether it agrees with `word_ids`.

    It disagrees if `word_ids` counts a whole text as one word. Raises Unsupported if there is no rule.
    """
    model, types = settings["model"], [each["type"] for each in components(settings["pre_tokenizer"])]
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
    if types[:1] == ["ByteLevel"]:
        return ByteLevelWords(tokenizer, settings), True
    return PatternWords(tokenizer, settings), True


class MarkedWords:
    """Words begin at tokens with a mark in front; with `white_space`, also at other white space and after it."""

    def __init__(self, texts: Mapping[int, str], added: set[int], white_space: bool) -> None:
        size = max(*texts, *added, 0) + 1
        self._begins, self._ends = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        for id, text in texts.items():
            self._begins[id] = text.startswith(MARK) or (white_space and text[:1].isspace())
            self._ends[id] = white_space and text[-1:].isspace() and text[-1] != " "
        self._begins[list(added)] = self._ends[list(added)] = True

    def __call__(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
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
    """The character of a byte token such as <0x0A>; other tokens are unchanged."""
    match = _BYTE.fullmatch(token)
    return chr(int(match[1], 16)) if match and int(match[1], 16) < 0x80 else token


def _splits_at_spaces(tokenizer: Tokenizer) -> bool:
    text = "a b c"
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    return tokenizer.pre_tokenizer is not None and len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) > 1


def _splits_at_marks(pre_tokenizer: dict[str, Any]) -> bool:
    """Whether it splits only at marks, so that only the first token of a word can begin with a mark."""
    match pre_tokenizer:
        case {"type": "Metaspace", "replacement": "▁", "split": True}:
            return True
        case {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"prepend_scheme": "always"} as last]}:
            return _splits_at_marks(last)
    return False
