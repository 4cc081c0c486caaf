r"""Word starts of byte-level tokenizers with another pattern than GPT-2's, such as those of Llama 3, GPT-4o and Qwen.

A token never crosses a split, and the bytes of each token are known. So the pattern is matched again in the joined
bytes of the tokens, by the regular expressions of pyarrow (RE2, https://github.com/google/re2/wiki/Syntax), and a token
that begins where a match ends is the first of a word. RE2 differs from the library in two ways:

- Its \s is ASCII alone. The pattern gets all white space of Unicode by ranges.
- It has no `\s+(?!\S)`: white space before a word, without its last character, which belongs to the word. So a byte
  that is not in UTF-8, and matches nothing, is put before this last character, and ends the match there.

Usual words are not matched. In ASCII, these patterns split before a space that is between another character and a
letter. They do not split a space and a word of small letters, whose first one may be a capital. They split such a word
from one mark, such as a comma, at its end.
"""

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from data_prep.tokenizer.token_bytes import Strings, Unsupported, added_ids, byte_tokens, components

_BEFORE_WORD = r"\s+(?!\S)"
_TO_NEWLINE = r"\s*[\r\n]"
_WHITE = r"\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_WIDE_WHITE = re.compile(rb"\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80")
_STOP, _END = 0xFF, 0xFE  # bytes that are not in UTF-8
_SPACE, _MARK, _CAPITAL, _SMALL = 1, 3, 4, 5
_KINDS = np.array([0] * 33 + [2] * 94 + [0] * 129, dtype=np.uint8)  # by byte; 2: other visible ASCII; 0: the rest
_KINDS[ord("A") :][:26], _KINDS[ord("a") :][:26] = _CAPITAL, _SMALL
_KINDS[[*b" "]], _KINDS[[*b",.;:!?"]] = _SPACE, _MARK
_SAMPLE = [*"aA1s'!\n\r\t _", "\u00e9", "\u4e2d", "\u0301", "\u00a0", "\u3000", "\U0001f600"]


class PatternWords:
    """The word rule of a tokenizer with the pre-tokenizers Split and ByteLevel.

    Raises Unsupported for other tokenizers, and if it splits short texts of many kinds otherwise than the library.
    """

    def __init__(self, tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
        self._pattern = _pattern(settings["pre_tokenizer"])
        tokens, added = byte_tokens(settings), sorted(added_ids(settings))
        size = max(*tokens, *added, 0) + 1
        self._bytes = Strings([b"" if id in added else tokens.get(id, b"") for id in range(size)])
        self._is_added = np.zeros(size, dtype=bool)
        self._is_added[added] = True
        rules = (self._by_words, self._matched)
        splits = next((rule for rule in rules if self._is_right(rule, tokenizer)), None)
        if splits is None:
            raise Unsupported(f"word starts are not known for the pattern {self._pattern!r}")
        self._splits = splits

    def __call__(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        data, ends = self._bytes.joined(ids)
        begins = np.append(0, ends)[: len(ids)]
        added = self._is_added[ids]
        first = np.zeros(len(ids) + 1, dtype=bool)  # of a text, an added token, or the text after one
        first[np.cumsum(lengths) - lengths] = True
        first[:-1] |= added
        first[1:] |= added
        first = first[:-1]
        return self._splits(data, begins[first])[begins] | first

    def _is_right(self, rule: Callable[[np.ndarray, np.ndarray], np.ndarray], tokenizer: Tokenizer) -> bool:
        """Whether a rule splits a sample of texts as the library does."""
        texts = ["".join(characters) for characters in itertools.product(_SAMPLE, repeat=3)]
        texts += ["".join(texts[number::37]) for number in range(37)]
        texts += ["x'll 're  're y'S", "1234567 \n\n  a", "Ab, cd; ef: gh! ij? kl. Mn"]
        encoded = [text.encode() for text in texts]
        begins = np.cumsum([0, *map(len, encoded)])
        expected = np.zeros(begins[-1] + 1, dtype=bool)
        for text, begin in zip(texts, begins.tolist(), strict=False):
            for _, (start, _) in tokenizer.pre_tokenizer.pre_tokenize_str(text):
                expected[begin + len(text[:start].encode())] = True
        splits = rule(np.frombuffer(b"".join(encoded), np.uint8), begins[:-1])
        return np.array_equal(splits[:-1], expected[:-1])

    def _by_words(self, data: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Where the pattern splits, bool [n_bytes + 1], if usual words need not be matched.

        Args:
            data: UTF-8 of all texts, uint8 [n_bytes]. begins: offset of each text, in order.
        """
        splits = np.zeros(len(data) + 1, dtype=bool)
        splits[begins] = True
        if not len(data):  # all tokens are added tokens
            return splits
        begin = splits[:-1]  # of a segment, which is matched or not
        kinds = _KINDS[data]
        before, space, letter = kinds[:-2] > _SPACE, kinds == _SPACE, kinds >= _CAPITAL
        begin[1:-1] |= before & space[1:-1] & letter[2:]
        small, after_space = kinds == _SMALL, np.append(False, (begin & space)[:-1])
        mark = (kinds == _MARK) & np.append(False, small[:-1]) & splits[1:] & ~begin
        plain = small | begin & space | letter & after_space & ~begin | mark
        segments = np.cumsum(begin, dtype=np.int32)
        is_matched = np.zeros(segments[-1] + 1, dtype=bool)
        is_matched[segments[~plain]] = True
        places = np.flatnonzero(is_matched[segments])
        splits[places[self._matched(data[places], np.flatnonzero(begin[places]))[:-1]]] = True
        begin |= mark
        return splits

    def _matched(self, data: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """As _by_words, for any pattern."""
        import pyarrow as pa
        from pyarrow import compute

        splits = np.zeros(len(data) + 1, dtype=bool)
        splits[begins] = True
        stopped = np.insert(data, np.union1d(self._stops(data, splits), begins), _STOP)
        buffers = [None, pa.py_buffer(np.array([0, len(stopped)], dtype=np.int32)), pa.py_buffer(stopped)]
        texts = pa.Array.from_buffers(pa.string(), 1, buffers)
        try:
            matched = compute.replace_substring_regex(texts, _for_re2(self._pattern), b"\\0%c" % _END)
        except pa.ArrowInvalid as error:
            raise Unsupported(f"RE2 cannot read the pattern {self._pattern!r}: {error}") from error
        result = np.frombuffer(matched.buffers()[2] or b"", dtype=np.uint8)
        ends = np.flatnonzero(result == _END)
        splits[ends - np.arange(len(ends)) - np.searchsorted(np.flatnonzero(result == _STOP), ends)] = True
        return splits

    def _stops(self, data: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Offsets of the last character of white space of two or more characters before a word.

        Not a line feed if the pattern takes the white space before it. begins: bool [n_bytes + 1].
        """
        if _BEFORE_WORD not in self._pattern:
            return np.empty(0, dtype=np.int64)
        white = (data == ord(" ")) | (data - np.uint8(ord("\t")) < 5)
        for match in _WIDE_WHITE.finditer(data.tobytes()):
            white[match.start() : match.end()] = True
        (places,) = np.nonzero(white[:-1])
        last = places[1:][np.diff(places) == 1]  # few: most white space is a single space
        last = last[~white[last + 1] & ~begins[last + 1]]
        for _ in range(2):  # back to the first byte of the character
            last -= (data[last] & 0xC0) == 0x80
        last = last[(last > 0) & white[last - 1] & ~begins[last]]
        newline = (data[last] == ord("\n")) | (data[last] == ord("\r"))
        return last[~newline] if _TO_NEWLINE in self._pattern else last


def _pattern(pre_tokenizer: Any) -> str:
    match pre_tokenizer:
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return str(pattern)
    others = " and ".join(each["type"] for each in components(pre_tokenizer)) or "no pre-tokenizer"
    raise Unsupported(f"word starts are known only for ByteLevel's own pattern and for a Split before it, not {others}")


def _for_re2(pattern: str) -> str:
    """The pattern without `\\s` and look-ahead."""
    parts = re.split(r"(\[[^\]]*\])", pattern.replace(_BEFORE_WORD + "|", ""))
    return "".join(part.replace(r"\s", _WHITE if part[:1] == "[" else f"[{_WHITE}]") for part in parts)
