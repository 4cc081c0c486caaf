"""Word starts of byte-level tokenizers with GPT-2's pattern, from token ids.

The pre-tokenizer ByteLevel splits by GPT-2's pattern (https://github.com/openai/gpt-2/blob/master/src/encoder.py):

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

A token never crosses a split, and the bytes of each token are known. So the classes of the characters on both sides of
a token boundary (letter, number, white space, other) determine whether the pattern splits there. At the end of white
space, the next token is needed too, and after an apostrophe, a few more. Characters in several tokens are joined first.
"""

from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import PreTokenizer

from data_prep.tokenizer.token_bytes import Strings, added_ids, byte_tokens

# Classes of the first character of a token. White space is classified by the token: BEGINS is a space and more, which
# begins a word, as does an added token.
LETTER, NUMBER, OTHER, BEGINS, SPACES, ONE_SPACE = range(6)
# Classes of the last character: the first three, then the ASCII space, which joins the next word, other white space,
# and the end of an added token.
JOINING, WHITE, ADDED = 3, 4, 5
_LAST, _INSIDE, _APOSTROPHE = 3, 1 << 6, 1 << 7  # bits: last class << 3, begins inside a character, begins with '
_CLASS_BITS = 0b111111
_NO, _YES, _LOOK_AHEAD = 0, 1, 2

_SHORT = [int.from_bytes(word, "little") for word in (b"'s", b"'t", b"'m", b"'d")]
_LONG = [int.from_bytes(word, "little") for word in (b"'re", b"'ve", b"'ll")]
_NO_TEXT = b"\xff"  # the bytes of an added token: no character continues in it
_UNKNOWN = 255


class ByteLevelWords:
    """The word rule of a tokenizer with the pre-tokenizer ByteLevel and its pattern, and any normalizer.

    Raises Unsupported if the model is not byte-level BPE.
    """

    def __init__(self, tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
        tokens, added = byte_tokens(settings), added_ids(settings)
        size = max(*tokens, *added, 0) + 1
        self._classes = _Classes(tokenizer.pre_tokenizer)
        self._bytes = Strings([_NO_TEXT if id in added else tokens.get(id, _NO_TEXT) for id in range(size)])
        self._table = self._packed(tokens, added, size)
        self._split = _split_table()

    def _packed(self, tokens: dict[int, bytes], added: set[int], size: int) -> np.ndarray:
        """uint8 [vocab_size]: the first and last class of each token, and the bits _INSIDE and _APOSTROPHE."""
        known = np.array(sorted(tokens))
        table = np.full(size, BEGINS | ADDED << _LAST, dtype=np.uint8)
        table[known] = self._classified(known, np.ones(len(known), dtype=bool))
        for id, token in tokens.items():
            if token[:1] == b"'":
                table[id] |= _APOSTROPHE
            elif token and token[0] & 0xC0 == 0x80:
                table[id] |= _INSIDE
        table[list(added)] = BEGINS | ADDED << _LAST
        return table

    def __call__(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        packed = self._table[ids]
        text_starts = np.zeros(len(ids) + 1, dtype=bool)
        text_starts[np.cumsum(lengths) - lengths] = True
        text_starts[-1] = True
        inside = packed >= _INSIDE
        inside &= packed < _APOSTROPHE
        if not inside.any():
            return self._starts(ids, packed, text_starts)
        # A group is a token and the following tokens that begin inside a character.
        groups = ~inside
        spread = ~groups
        spread[:-1] |= spread[1:]
        packed[spread & groups] = self._classified(ids[spread], groups[spread])
        starts = np.zeros(len(ids), dtype=bool)
        starts[groups] = self._starts(ids[groups], packed[groups], np.append(text_starts[:-1][groups], True))
        return starts

    def _starts(self, ids: np.ndarray, packed: np.ndarray, text_starts: np.ndarray) -> np.ndarray:
        """Word starts of groups. `ids` are their first tokens; `text_starts` has one more element."""
        pairs = packed[:-1] & (_CLASS_BITS ^ 7)
        pairs |= packed[1:] & 7
        split = np.ones(len(ids), dtype=np.uint8)
        split[1:] = self._split[pairs]
        split[text_starts[:-1]] = _YES
        # The last of several white space characters is a separate word only if other characters follow.
        (last,) = np.nonzero(split == _LOOK_AHEAD)
        following = packed[np.minimum(last + 1, len(ids) - 1)] & 7
        split[last] = (following <= OTHER) & ~text_starts[last + 1]
        starts = split.view(bool)
        self._contractions(ids, packed, text_starts, starts)
        return starts

    def _contractions(self, ids: np.ndarray, packed: np.ndarray, text_starts: np.ndarray, starts: np.ndarray) -> None:
        """A contraction is a word only if its apostrophe begins a word. Another word always begins after it."""
        (begin,) = np.nonzero((packed >= _APOSTROPHE) & starts)
        heads, widths = self._bytes.heads, self._bytes.lengths
        text, width = heads[ids[begin]], widths[ids[begin]]
        ends = [width]  # in bytes, of the first, second and third token
        open_text = np.ones(len(begin), dtype=bool)
        for step in (1, 2):
            place = np.minimum(begin + step, len(ids) - 1)
            open_text &= ~text_starts[np.minimum(begin + step, len(ids))]
            more = open_text & (width < 3)
            text = np.where(more, text | heads[ids[place]] << 8 * np.minimum(width, 3), text)
            width = width + np.where(more, widths[ids[place]], 0)
            ends.append(width)
        length = np.select([np.isin(text & 0xFFFF, _SHORT), np.isin(text & 0xFFFFFF, _LONG)], [2, 3], 0)
        for step, end in enumerate(ends, 1):
            (tokens,) = np.nonzero((length > 0) & (begin + step < len(ids)))
            starts[begin[tokens] + step] = (end >= length)[tokens]  # the next token is in the contraction, or after it
            length[end >= length] = 0

    def _classified(self, ids: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Packed classes of groups of tokens. `groups` bool [n_tokens] marks the first token of each."""
        data, ends = self._bytes.joined(ids)
        firsts = np.flatnonzero(groups)
        begin = np.append(0, ends)[firsts]
        end = np.append(begin[1:], len(data))
        classes, widths = self._classes.at(data, begin)
        last = end - 1
        for _ in range(3):  # back to the last character's first byte
            last -= (data[last] & 0xC0 == 0x80) & (last > begin)
        last_classes, _ = self._classes.at(data, last)
        white = classes >= JOINING
        alone = begin + widths == end
        # A token is inside one pre-token. So if it begins and ends with white space, it is all white space.
        first = np.where(~white, classes, np.where(alone, ONE_SPACE, np.where(last_classes >= JOINING, SPACES, BEGINS)))
        return (first | last_classes << _LAST).astype(np.uint8)


class _Classes:
    """Classes of characters, from the tokenizer's own pre-tokenizer, because Unicode versions differ."""

    def __init__(self, pre_tokenizer: PreTokenizer) -> None:
        self._pre_tokenizer = pre_tokenizer
        self._table = np.full(0x110000, _UNKNOWN, dtype=np.uint8)

    def at(self, data: np.ndarray, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Classes and widths in bytes of the UTF-8 characters of `data` at `begin` [n]. Incomplete ones are OTHER."""
        padded = np.append(data, np.zeros(3, dtype=np.uint8)).astype(np.int64)
        lead = padded[begin]
        widths = np.select([lead < 0xC0, lead < 0xE0, lead < 0xF0], [1, 2, 3], 4)
        points = np.where(widths == 1, lead, lead & (0x7F >> widths))
        for byte in (1, 2, 3):
            more = widths > byte
            points[more] = points[more] << 6 | padded[begin[more] + byte] & 0x3F
        points[(lead >= 0x80) & (lead < 0xC0) | (points > 0x10FFFF) | (points >> 11 == 0x1B)] = 0x7F
        classes = self._table[points]
        if (classes == _UNKNOWN).any():
            self._classify(np.unique(points[classes == _UNKNOWN]))
            classes = self._table[points]
        return classes.astype(np.int64), widths

    def _classify(self, points: np.ndarray) -> None:
        text = "".join(f"a{c}1{c}!{c}" for c in map(chr, points.tolist()))
        splits = np.zeros(len(text) + 1, dtype=bool)
        splits[[start for _, (start, _) in self._pre_tokenizer.pre_tokenize_str(text)]] = True
        joined = ~splits[:-1].reshape(-1, 6)[:, [1, 3, 5]]
        white = np.where(points == ord(" "), JOINING, WHITE)
        self._table[points] = np.where(joined.any(1), joined.argmax(1), white)


def _split_table() -> np.ndarray:
    """uint8 [64]: whether the pattern splits between two tokens, by last class << 3 | next first class."""
    table = np.full(64, _YES, dtype=np.uint8)
    for last in range(6):
        for first in range(6):
            if first <= OTHER and (first == last or last == JOINING):
                table[last << _LAST | first] = _NO
            elif first in (SPACES, ONE_SPACE) and last in (JOINING, WHITE):
                table[last << _LAST | first] = _NO if first == SPACES else _LOOK_AHEAD
    return table
