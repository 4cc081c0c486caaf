"""Words and n-grams of many texts as 64-bit hashes, which are the same in every process and on every machine.

A word is a maximal run of letters, marks and digits of any script in lower case, between punctuation, symbols or
spaces. In scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese), each character is a word. Unicode 3.2,
which all versions of Python contain, classifies characters. Later characters count as letters, except in the blocks of
punctuation and symbols.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

BATCH_CHARACTERS = 1 << 20
BATCH_TEXTS = 1 << 13
PART_WORDS = 1 << 20
_PIECE = 1 << 17  # characters that are hashed in one step: the arrays fit into the cache of a core
_WORD_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse mod 2^64
_NGRAM_BASE = np.uint64(0xD1342543DE82EF95)
_LATER_SYMBOLS = ((0x2000, 0x2C00), (0x2E00, 0x2E80), (0xFE10, 0xFE20), (0x1F000, 0x1FC00))
_WITHOUT_SPACES = (
    *((0x0E00, 0x0F00), (0x1000, 0x10A0), (0x1780, 0x1800)),  # Thai and Lao, Burmese, Khmer
    *((0x3005, 0x3008), (0x3040, 0x3100), (0x31F0, 0x3200), (0xFF66, 0xFFA0)),  # kana and iteration marks
    *((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x40000)),  # Chinese characters
)


def mix(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele et al. 2014): a bijection of uint64 that mixes all bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class HashedWords(NamedTuple):
    """The words of texts, in order: `hashes` uint64 [n_words], lengths in `characters` int64 [n_words], and the number
    of words of each text, `per_text` int64 [n_texts]."""

    hashes: np.ndarray
    characters: np.ndarray
    per_text: np.ndarray


def batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Consecutive parts of `texts` with at most BATCH_TEXTS texts and BATCH_CHARACTERS characters, or one text."""
    start = size = 0
    for index, text in enumerate(texts):
        if index > start and (size + len(text) > BATCH_CHARACTERS or index - start == BATCH_TEXTS):
            yield texts[start:index]
            start, size = index, 0
        size += len(text)
    if start < len(texts):
        yield texts[start:]


def split_words(texts: Sequence[str], by_character: bool = False) -> HashedWords:
    """The words of `texts` in order or, `by_character`, the letters, marks and digits.

    A word's hash is a polynomial in its characters mod 2^64, finalized by `mix`. A run of more than 131,072 characters
    without a space may be cut.
    """
    hashes, characters = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    per_text = np.zeros(len(texts), dtype=np.int64)
    for pieces, owners in _chunks(texts):
        of_words, lengths, counts = _split(pieces, by_character)
        hashes.append(of_words)
        characters.append(lengths)
        np.add.at(per_text, owners, counts)
    return HashedWords(np.concatenate(hashes), np.concatenate(characters), per_text)


def ngram_starts(words_per_text: np.ndarray, n: int) -> np.ndarray:
    """Index of the first word of each n-gram within one text, int64 [n_ngrams], ascending."""
    counts = np.maximum(words_per_text - n + 1, 0)
    first_word, first_ngram = np.cumsum(words_per_text) - words_per_text, np.cumsum(counts) - counts
    return np.repeat(first_word - first_ngram, counts) + np.arange(counts.sum())


def ngrams(hashes: np.ndarray, words_per_text: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of all n-grams within one text, uint64 [n_ngrams], and the text of each, int64 [n_ngrams]."""
    starts = ngram_starts(words_per_text, n)
    texts = np.repeat(np.arange(len(words_per_text)), np.maximum(words_per_text - n + 1, 0))
    if not len(starts):
        return np.empty(0, np.uint64), texts
    windows = len(hashes) - n + 1
    total = hashes[:windows].copy()
    for k in range(1, n):
        total *= _NGRAM_BASE
        total += hashes[k : k + windows]
    return mix(total[starts]), texts


def parts(hashes: np.ndarray, words_per_text: np.ndarray, n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same words, or overlapping parts of a single text. Each n-gram is in exactly one part.

    With `batches`, this bounds the memory for n-grams of texts of any length.
    """
    if len(words_per_text) != 1:
        yield hashes, words_per_text
        return
    for start in range(0, max(1, len(hashes) - n + 1), PART_WORDS):
        part = hashes[start : start + PART_WORDS + n - 1]
        yield part, np.array([len(part)])


def _chunks(texts: Sequence[str]) -> Iterator[tuple[list[str], list[int]]]:
    """Pieces of texts with the index of the text of each, fewer than two _PIECE characters in one step."""
    pieces: list[str] = []
    owners: list[int] = []
    size = 0
    for owner, text in enumerate(texts):
        for piece in _pieces(text):
            pieces.append(piece)
            owners.append(owner)
            size += len(piece) + 1
            if size >= _PIECE:
                yield pieces, owners
                pieces, owners, size = [], [], 0
    if pieces:
        yield pieces, owners


def _pieces(text: str) -> Iterator[str]:
    """A text in pieces of at most _PIECE characters, cut after a space. The cuts depend only on the text."""
    start = 0
    while len(text) - start > _PIECE:
        end = start + _PIECE
        end = max(text.rfind(" ", start, end), text.rfind("\n", start, end)) + 1 or end
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def _split(pieces: list[str], by_character: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hashes and lengths of the words, and the number of words in each piece."""
    joined = "\n" + "\n".join(pieces) + "\n"
    wide = not joined.isascii()
    encoded = joined.encode("utf-32-le", "surrogatepass") if wide else joined.encode("ascii")
    codes = np.frombuffer(encoded, dtype="<u4" if wide else np.uint8)
    values = _tables()[0][codes]
    inside = values != 0
    edge = inside[1:] != inside[:-1]
    if by_character:
        edge |= inside[1:] & inside[:-1]
    elif wide:
        alone = _tables()[1][codes]
        edge |= (alone[1:] | alone[:-1]) & inside[1:] & inside[:-1]
    starts = np.flatnonzero(edge & inside[1:]) + 1
    ends = np.flatnonzero(edge & inside[:-1]) + 1
    of_place, inverses = _powers()
    sums = np.cumsum(values * of_place[: len(values)])
    hashes = mix((sums[ends - 1] - sums[starts - 1]) * inverses[starts])
    offsets = np.cumsum([0] + [len(piece) + 1 for piece in pieces])
    return hashes, ends - starts, np.diff(np.searchsorted(starts, offsets + 1))


@lru_cache(maxsize=1)
def _powers() -> tuple[np.ndarray, np.ndarray]:
    """The powers of the base of words, and of its inverse, for the characters of the largest chunk, uint64 each."""
    factors = np.repeat(np.array([[_WORD_BASE], [pow(_WORD_BASE, -1, 1 << 64)]], np.uint64), 2 * _PIECE + 5, axis=1)
    factors[:, 0] = 1
    rows = np.cumprod(factors, axis=1)
    return rows[0], rows[1]


@lru_cache(maxsize=1)
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """By code point: a hash, equal for upper and lower case, 0 for separators, uint64 [0x110000]; and whether the
    character is one word, bool [0x110000]."""
    lower = np.arange(0x110000, dtype=np.uint64)
    for code in range(0x20000):
        lower[code] = _lower(code)
    alone = np.zeros(0x110000, dtype=bool)
    for start, end in _WITHOUT_SPACES:
        alone[start:end] = True
    return mix(lower), alone & (lower != 0)


def _lower(code: int) -> int:
    """The code point of the lower-case character; 0 if the character separates words."""
    category = unicodedata.ucd_3_2_0.category(chr(code))
    if category == "Cn":
        return 0 if any(start <= code < end for start, end in _LATER_SYMBOLS) else code
    if category in ("Lu", "Lt"):
        return ord(chr(code).lower()[0])
    return code if category[0] in "LMN" or category == "Co" else 0
