"""Limits of our tokenizers on text without spaces, and how an encoder applies them itself.

Training byte pairs takes time quadratic in the length of a word, and WordPiece turns a word of more than 100 characters
into one unknown token. So the pre-tokenizer of `tokenizer train` cuts long words (a cut begins a word), and each
tokenizer normalizes text to NFC. The fast packages know no such cut, and other versions of Unicode. For them, `plain`
removes both from a tokenizer, and `Preparation` applies both to the text.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

RUN_CHARACTERS = 1000
WORD_CHARACTERS = 100
_SHORTEST_GROWING = 33  # characters that normalization and lower-casing turn into at most WORD_CHARACTERS
_BREAKS = " \t\r\n\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f"  # white space, Chinese and Japanese punctuation
_RUN = f" ?[^{_BREAKS}]{{{RUN_CHARACTERS}}}|[{_BREAKS}]{{{RUN_CHARACTERS}}}"
_WORD = f"[\\s\\S]{{{WORD_CHARACTERS}}}"


def cut_runs(pre_tokenizer: Any) -> Any:
    """Cut text after RUN_CHARACTERS without a break, and breaks too, before this pre-tokenizer."""
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_RUN), "isolated"), pre_tokenizer])


def cut_words(pre_tokenizer: Any) -> Any:
    """Cut the words of this pre-tokenizer after WORD_CHARACTERS."""
    return pre_tokenizers.Sequence([pre_tokenizer, pre_tokenizers.Split(Regex(_WORD), "isolated")])


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a tokenizer without NFC as its first normalizer, and without our cuts."""
    match settings["pre_tokenizer"]:
        case {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}}, after]}:
            settings = settings | {"pre_tokenizer": after} if pattern == _RUN else settings
        case {"type": "Sequence", "pretokenizers": [before, {"type": "Split", "pattern": {"Regex": pattern}}]}:
            settings = settings | {"pre_tokenizer": before} if pattern == _WORD else settings
    match settings["normalizer"]:
        case {"type": "NFC"}:
            return settings | {"normalizer": None}
        case {"type": "Sequence", "normalizers": [{"type": "NFC"}, *after]}:
            return settings | {
                "normalizer": after[0] if len(after) == 1 else {"type": "Sequence", "normalizers": after}
            }
    return settings


class Preparation:
    """What `plain` removed from the JSON `settings` of a tokenizer, applied to text."""

    def __init__(self, settings: dict[str, Any]) -> None:
        removed = plain(settings)
        changed = removed["pre_tokenizer"] is not settings["pre_tokenizer"]
        self._cuts = re.compile(_RUN) if changed and removed["pre_tokenizer"]["type"] == "ByteLevel" else None
        self._cuts_words = changed and self._cuts is None
        self._normalizer = normalizers.NFC() if removed["normalizer"] is not settings["normalizer"] else None
        self._has_added = any(not token["special"] for token in settings["added_tokens"])

    def takes(self, text: str) -> bool:
        """Whether the text can be normalized as a whole: an added token may stand before a mark."""
        return self._normalizer is None or not self._has_added or _is_nfc(text)

    def parts(self, text: str) -> Iterator[str]:
        """The parts of the text between which runs are cut, in NFC as of the tokenizers library if `takes` is true."""
        if self._normalizer is not None and not _is_nfc(text) and not self._has_added:
            text = str(self._normalizer.normalize_str(text))
        start = 0
        if self._cuts is not None and has_long_run(text, RUN_CHARACTERS):
            for match in self._cuts.finditer(text):
                if start < match.start():
                    yield text[start : match.start()]
                yield match.group()
                start = match.end()
        if start < len(text) or not text:
            yield text[start:]

    def may_cut_word(self, text: str) -> bool:
        """Whether a word of the text may be cut after WORD_CHARACTERS."""
        return self._cuts_words and has_long_run(text, _SHORTEST_GROWING)


def has_long_run(text: str, characters: int) -> bool:
    """Whether so many characters follow each other without a break, or are all breaks."""
    start = 0
    while len(text) - start >= characters:
        window = text[start : start + characters]
        last = len(window.rstrip(_BREAKS))  # where the last run of the window begins
        last = last if last < len(window) else 1 + max(map(window.rfind, _BREAKS))
        if last == 0:
            return True
        start += last
    return False


def _is_nfc(text: str) -> bool:
    """Whether NFC of the tokenizers library does not change the text. It knows fewer marks than Python (Unicode 9)."""
    return text.isascii() or unicodedata.is_normalized("NFC", text)
