"""Compute where words begin from token ids.

A word is a pre-token: a part that the pre-tokenizer splits off before the model sees the text, as counted by
`Encoding.word_ids` of the tokenizers library. An added token in the text is one word. If the pre-tokenizer does not
split at spaces (as in SentencePiece tokenizers without one), a word begins at the start of the text, at a space (its
mark "▁" belongs to the next word), at other white space and after it.

The pre-tokenizer ByteLevel splits by GPT-2's pattern (https://github.com/openai/gpt-2/blob/master/src/encoder.py):

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

A token never crosses a split, and the bytes of each token are known. So the classes of the characters on both sides of
a token boundary (letter, number, white space, other) determine whether the pattern splits there. At the end of white
space, the next token is needed too, and after an apostrophe, a few more. Characters in several tokens are joined first.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import PreTokenizer

WordRule = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Ids [n_tokens] and lengths [n_texts] to word starts bool [n_tokens]."""

MARK = "▁"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")

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


class Unsupported(Exception):
    """Why a word rule or an encoder cannot be used with a tokenizer."""


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
    return ByteLevelWords(tokenizer, settings), True


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


class ByteLevelWords:
    """The word rule of a tokenizer with the pre-tokenizer ByteLevel and its pattern, and any normalizer.

    Raises Unsupported for other tokenizers.
    """

    def __init__(self, tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
        pre_tokenizer = settings["pre_tokenizer"] or {"type": "no pre-tokenizer"}
        if pre_tokenizer["type"] != "ByteLevel" or not pre_tokenizer["use_regex"]:
            others = " and ".join(each["type"] for each in components(pre_tokenizer))
            raise Unsupported(f"word starts are known only for ByteLevel's own pattern, not {others}")
        tokens, added = byte_tokens(settings), added_ids(settings)
        size = max(*tokens, *added, 0) + 1
        self._classes = _Classes(tokenizer.pre_tokenizer)
        self._bytes = _Strings([_NO_TEXT if id in added else tokens.get(id, _NO_TEXT) for id in range(size)])
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
        contracted = length > 0
        for step, end in enumerate(ends):
            if step:
                starts[begin[contracted] + step] = False
            done = contracted & (end >= length)
            after = begin[done] + step + 1
            starts[after[after < len(ids)]] = True
            contracted &= ~done

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


class _Strings:
    """Byte strings by number, with `lengths` int64 [n], and the first three bytes in `heads` int64 [n], low first."""

    def __init__(self, strings: list[bytes]) -> None:
        self.lengths = np.array([len(string) for string in strings], dtype=np.int64)
        self.heads = np.array([int.from_bytes(string[:3], "little") for string in strings], dtype=np.int64)
        self._data = np.frombuffer(b"".join(strings), dtype=np.uint8)
        self._begin = np.cumsum(self.lengths) - self.lengths

    def joined(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The concatenated bytes of these strings, uint8 [n_bytes], and the end of each, [n_strings]."""
        lengths = self.lengths[numbers]
        ends = np.cumsum(lengths)
        shift = np.repeat(self._begin[numbers] - (ends - lengths), lengths)
        return self._data[shift + np.arange(len(shift))], ends


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


def components(component: Any) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer, and the members of a sequence."""
    if not component:
        return []
    members = component.get("normalizers") or component.get("pretokenizers") or []
    return [component, *(inner for member in members for inner in components(member))]


def byte_tokens(settings: dict[str, Any]) -> dict[int, bytes]:
    """The bytes of each token of a byte-level BPE model, by id. Raises Unsupported for other models."""
    model = settings["model"]
    if model["type"] != "BPE" or model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        raise Unsupported(f"{model['type']} is not byte-level BPE")
    alphabet = _alphabet()
    if not alphabet.keys() <= model["vocab"].keys():
        raise Unsupported("its vocabulary lacks some of the 256 bytes")
    tokens = {
        id: bytes(alphabet[character] for character in token)
        for token, id in model["vocab"].items()
        if alphabet.keys() >= set(token)
    }
    for token in settings["added_tokens"]:
        if not token["special"] and tokens.get(token["id"]) == token["content"].encode():
            raise Unsupported(f"the token {token['content']!r} is both added and a word piece")
    return tokens


def added_ids(settings: dict[str, Any]) -> set[int]:
    """Ids of the added tokens that can occur in text: all except special ones."""
    return {token["id"] for token in settings["added_tokens"] if not token["special"]}


def _alphabet() -> dict[str, int]:
    """The byte of each character: printable ones for themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


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
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "▁", "split": True, "prepend_scheme": "always"},
            ],
        }:
            return True
    return False
