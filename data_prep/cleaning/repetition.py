"""Find repetitive documents by the rules of Gopher (Rae et al. 2021, "Scaling language models", table A1).

A line, paragraph or n-gram is a duplicate if an equal one occurs earlier in the document. Shares of characters refer to
the characters of words for n-grams, and of lines that are not blank for lines and paragraphs. To bound the memory, only
the first 2^21 characters of a document are checked.
"""

from collections.abc import Sequence

import numpy as np

from data_prep.cleaning.key_passes import first_index
from data_prep.cleaning.word_hashes import HashedWords, batches, mix, ngram_starts, ngrams, split_words

CHECKED_CHARACTERS = 1 << 21
MAX_DUPLICATE_LINES = 0.30
MAX_DUPLICATE_PARAGRAPHS = 0.30
MAX_DUPLICATE_LINE_CHARACTERS = 0.20
MAX_DUPLICATE_PARAGRAPH_CHARACTERS = 0.20
MAX_TOP_NGRAM_CHARACTERS = {2: 0.20, 3: 0.18, 4: 0.16}
MAX_DUPLICATE_NGRAM_CHARACTERS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


def repetitive(texts: Sequence[str]) -> np.ndarray:
    """Whether any share of each text exceeds its limit, bool [n_texts]."""
    return np.concatenate([np.zeros(0, bool), *(_repetitive(batch) for batch in batches(texts))])


def duplicate_line_shares(text: str, separator: str = "\n") -> tuple[float, float]:
    """The share of duplicate lines, and of characters in them, without blank lines. Use "\\n\\n" for paragraphs."""
    lines = [line for line in map(str.strip, text.split(separator)) if line]
    seen = set(lines)
    if len(seen) == len(lines):
        return 0.0, 0.0
    total = sum(map(len, lines))
    return 1 - len(seen) / len(lines), 1 - sum(map(len, seen)) / total


def top_ngram_shares(words: HashedWords, n: int) -> np.ndarray:
    """The share of characters in the most frequent n-gram of each text, float64 [n_texts]; 0 if none occurs twice.

    Of equally frequent n-grams, the longest counts.
    """
    starts, keys, owners = _keys(words, n)
    first = first_index(keys)
    frequency = np.bincount(first, minlength=len(first))[first]
    most = np.zeros(len(words.per_text), dtype=np.int64)
    np.maximum.at(most, owners, frequency)
    top = (frequency == most[owners]) & (frequency > 1)
    sums = np.cumsum(np.append(0, words.characters))
    characters = np.zeros(len(words.per_text), dtype=np.int64)
    np.maximum.at(characters, owners[top], (frequency * (sums[starts + n] - sums[starts]))[top])
    return characters / np.maximum(_characters(words, words.characters), 1)


def duplicate_ngram_shares(words: HashedWords, n: int) -> np.ndarray:
    """The share of characters in duplicate n-grams of each text, each character counted once, float64 [n_texts]."""
    starts, keys, _ = _keys(words, n)
    duplicate = starts[first_index(keys) != np.arange(len(keys))]
    steps = np.zeros(len(words.hashes) + 1, dtype=np.int64)
    steps[duplicate] += 1
    steps[duplicate + n] -= 1
    covered = np.cumsum(steps[:-1]) > 0
    return _characters(words, words.characters * covered) / np.maximum(_characters(words, words.characters), 1)


def _repetitive(texts: Sequence[str]) -> np.ndarray:
    texts = [text[:CHECKED_CHARACTERS] for text in texts]
    words = split_words(texts)
    repeats = np.array([_lines_repeat(text) for text in texts], dtype=bool)
    for n, limit in MAX_TOP_NGRAM_CHARACTERS.items():
        repeats |= top_ngram_shares(words, n) > limit
    candidates = np.flatnonzero(~repeats)
    for n, limit in MAX_DUPLICATE_NGRAM_CHARACTERS.items():
        shares = duplicate_ngram_shares(_select(words, candidates), n)
        repeats[candidates[shares > limit]] = True
        # A duplicate (n+1)-gram consists of duplicate n-grams, so shares can only fall with n.
        candidates = candidates[(shares <= limit) & (shares > min(MAX_DUPLICATE_NGRAM_CHARACTERS.values()))]
    return repeats


def _lines_repeat(text: str) -> bool:
    lines, line_characters = duplicate_line_shares(text)
    if not lines:
        return False  # then no paragraph repeats
    paragraphs, paragraph_characters = duplicate_line_shares(text, "\n\n")
    return (
        lines > MAX_DUPLICATE_LINES
        or line_characters > MAX_DUPLICATE_LINE_CHARACTERS
        or paragraphs > MAX_DUPLICATE_PARAGRAPHS
        or paragraph_characters > MAX_DUPLICATE_PARAGRAPH_CHARACTERS
    )


def _keys(words: HashedWords, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every n-gram's first word [n_ngrams], a key that differs between texts [n_ngrams, 1], and its text [n_ngrams]."""
    grams, owners = ngrams(words.hashes, words.per_text, n)
    keys = grams ^ mix(np.arange(1, len(words.per_text) + 1, dtype=np.uint64))[owners]
    return ngram_starts(words.per_text, n), keys[:, None], owners


def _characters(words: HashedWords, characters: np.ndarray) -> np.ndarray:
    """Sums over each text's words, int64 [n_texts]."""
    sums = np.cumsum(np.append(0, characters))
    ends = np.cumsum(words.per_text)
    return sums[ends] - sums[ends - words.per_text]


def _select(words: HashedWords, texts: np.ndarray) -> HashedWords:
    """The words of some of the texts."""
    chosen = np.zeros(len(words.per_text), dtype=bool)
    chosen[texts] = True
    mask = np.repeat(chosen, words.per_text)
    return HashedWords(words.hashes[mask], words.characters[mask], words.per_text[texts])
