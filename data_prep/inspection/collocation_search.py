"""Collocations: word n-grams that occur together more often than their parts would by chance.

The measure is from Levine et al., "PMI-Masking: Principled masking of correlated spans", ICLR 2021, arXiv:2010.01825:
the minimum of log p(w1 .. wn) / (p(s1) p(s2) ..) over all divisions of the n-gram into parts s1, s2, .., where p is a
count divided by the number of n-grams of that length. So a phrase does not rank high only because it contains a
collocation. For n = 2 it is pointwise mutual information (PMI).

An n-gram is at most as frequent as its first and its last (n - 1)-gram (Agrawal and Srikant, "Fast algorithms for
mining association rules", 1994). So n-grams are counted exactly as pairs of (n - 1)-grams, only if both are frequent.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from data_prep.format import Collocations, Dataset, SpanHashes
from data_prep.inspection.show_document import open_vocabulary, text_of

_NONE = -1  # no frequent n-gram begins here
_NEVER = np.uint32(2**32 - 1)
CHUNK = 1 << 22  # positions of one step

SearchProgress = Callable[[str, int, int], None]
"""Progress display; arguments: a stage, the work done and all work."""


@dataclass
class _Ngrams:
    """The frequent n-grams of n words, by number.

    counts [F] int64; log_p [F]: log of the share among all n-grams of n words.
    first, last [F] int32: the first and the last (n - 1)-gram of each, if n > 1.
    best [F]: the largest sum of log_p over all divisions into parts, one part included. pmi [F] float32.
    sizes [F] uint32: the smallest size of a list that has it.
    """

    counts: NDArray[np.int64]
    log_p: NDArray[np.float64]
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    best: NDArray[np.float64]
    pmi: NDArray[np.float32] = field(init=False)
    sizes: NDArray[np.uint32] = field(init=False)


@dataclass(frozen=True)
class CollocationCounts:
    """A collocation list, best first for each n.

    counts int64 [C], pmi float32 [C]. candidates: number of frequent n-grams with a positive PMI, for n = 2, 3, ...
    covered: share of the sample's words in an occurrence of a collocation. tokens, blocks, words: sample size.
    """

    listed: Collocations
    counts: NDArray[np.int64]
    pmi: NDArray[np.float32]
    candidates: list[int]
    covered: float
    tokens: int
    blocks: int
    words: int

    def write(self, dataset: Dataset, min_count: int, out: Path) -> list[str | None]:
        """Write the list of a data set. Returns the text of each n-gram, or None if the data set has no tokenizer."""
        listed, tokenizer = self.listed, open_vocabulary(dataset)
        ends = np.cumsum(listed.word_sizes)[np.cumsum(listed.n_words) - 1]
        ngrams = np.split(listed.tokens, ends[:-1])
        texts = [text_of(tokenizer, ids.tolist()) if tokenizer else None for ids in ngrams]
        settings = {
            "data_set_fingerprint": dataset.manifest.fingerprint,
            "sample": {"blocks": self.blocks, "tokens": self.tokens, "words": self.words},
            "min_count": min_count,
        }
        listed.write(out, {"count": self.counts, "pmi": self.pmi, "text": texts}, settings)
        return texts


def find_collocations(
    dataset: Dataset, size: int | None, min_count: int, max_words: int, sample_tokens: int, report: SearchProgress
) -> CollocationCounts:
    """Find the collocations of a data set in a sample of blocks that are spread evenly over it.

    Args:
        size: maximum number of n-grams in the list: half of them with two words, a quarter with three, and so on; the
            two largest lengths have equal shares. By default, half of the sample's words are in an occurrence of one.
        min_count: minimum number of occurrences in the sample.
        max_words: number of words of the longest n-grams.
        sample_tokens: approximate size of the sample. Each token needs about 20 bytes of memory.

    Raises:
        UserError: if the data set has no word starts, or the list would be empty.
    """
    words = _Words(dataset)
    parts, blocks, tokens = words.sample(sample_tokens, report)
    n_words = int(np.count_nonzero(parts != _NONE))
    frequent, levels, smallest = _count(parts, min_count, max_words, report)
    if size is None:
        size = int(np.partition(smallest, n_words // 2)[n_words // 2])
    size = min(size, int(_NEVER) - 1)
    chosen = [np.argsort(level.sizes, kind="stable")[: np.count_nonzero(level.sizes <= size)] for level in levels[1:]]
    if not sum(map(len, chosen)):
        raise UserError(
            f"{dataset.location} has no collocations of {min_count} occurrences in a sample of {tokens:,} tokens; "
            "lower --min-count, or raise --tokens or --size."
        )
    numbers = [
        np.stack([frequent[_part(levels, n, word, 1)[best]] for word in range(n)], axis=1).reshape(-1)
        for n, best in enumerate(chosen, 2)
    ]
    ids, word_sizes = words.spellings(np.concatenate(numbers))
    n_of = np.repeat(np.arange(2, max_words + 1), [len(best) for best in chosen])
    return CollocationCounts(
        Collocations(ids, word_sizes, n_of, dataset.manifest.tokenizer.sha256),
        np.concatenate([level.counts[best] for level, best in zip(levels[1:], chosen, strict=True)]),
        np.concatenate([level.pmi[best] for level, best in zip(levels[1:], chosen, strict=True)]),
        [int(np.count_nonzero(level.sizes != _NEVER)) for level in levels[1:]],
        float(np.count_nonzero(smallest <= size) / n_words),
        tokens,
        blocks,
        n_words,
    )


def _count(
    parts: NDArray[np.int32], min_count: int, max_words: int, report: SearchProgress
) -> tuple[NDArray[np.int64], list[_Ngrams], NDArray[np.uint32]]:
    """Count n-grams in a sample from `_Words.sample`. `parts` is overwritten.

    Returns:
        frequent [F]: the frequent words, in the order of the first level.
        levels: frequent n-grams of 1, 2, ... words.
        smallest: for each position of the sample, the smallest size of a list that covers it.
    """
    runs = np.diff(np.flatnonzero(parts == _NONE), append=len(parts)) - 1
    counts = np.bincount(parts[parts != _NONE], minlength=1)
    frequent = np.flatnonzero(counts >= min_count)
    numbers = np.full(len(counts) + 1, _NONE, np.int32)  # numbers[_NONE] is the last element
    numbers[frequent] = np.arange(len(frequent))
    parts[:] = numbers[parts]
    log_p, nothing = np.log(counts[frequent] / max(int(runs.sum()), 1)), np.zeros(0, np.int32)
    levels = [_Ngrams(counts[frequent], log_p, nothing, nothing, log_p)]
    smallest = np.full(len(parts), _NEVER)
    for n in range(2, max_words + 1):
        report(f"counting n-grams of {n} words", n - 2, max_words - 1)
        keys, counts = _pairs(parts, min_count)
        _renumber(parts, keys)
        log_p = np.log(counts / max(int(np.maximum(runs - n + 1, 0).sum()), 1))
        level = _Ngrams(counts, log_p, (keys >> np.uint64(32)).astype(np.int32), keys.astype(np.int32), log_p)
        levels.append(level)
        _rate(levels)
        level.sizes = _sizes(level, n, max_words)
        _cover(smallest, parts, level.sizes, n)
    return frequent, levels, smallest


class _Words:
    """The words of a data set, numbered by their first appearance."""

    def __init__(self, dataset: Dataset):
        info = dataset.manifest.tokenizer
        self._dataset = dataset
        self._ordinary = np.ones(info.vocab_size, np.bool_)
        self._ordinary[[*info.all_special_ids, *info.special_ids.values()]] = False
        self._hashes = SpanHashes(self._ordinary)
        self._numbers: dict[bytes, int] = {}

    def sample(self, tokens: int, report: SearchProgress) -> tuple[NDArray[np.int32], int, int]:
        """Words of evenly spread blocks, with _NONE before each run of ordinary tokens; number of blocks and tokens."""
        totals = self._dataset.manifest.totals
        n_blocks = min(totals.blocks, -(-tokens * totals.blocks // max(totals.tokens, 1)))
        blocks = (2 * np.arange(n_blocks) + 1) * totals.blocks // (2 * max(n_blocks, 1))
        words, done = [], 0
        for number, block in enumerate(blocks.tolist()):
            report("reading", number, n_blocks)
            words.append(self._read(block))
            done += self._dataset.n_tokens(block)
        return np.concatenate([np.array([_NONE], np.int32), *words]), n_blocks, done

    def _read(self, block: int) -> NDArray[np.int32]:
        tokens, ends = self._dataset.tokens(block), np.cumsum(self._dataset.document_lengths(block))
        ordinary = self._ordinary[tokens]
        begins_run = ordinary.copy()
        begins_run[1:] &= ~ordinary[:-1]
        first = ends[ends < len(tokens)]
        begins_run[first] = ordinary[first]
        begins = ordinary & (self._dataset.token_starts(block, tokens) | begins_run)
        bounds = np.flatnonzero(begins | ~ordinary)
        is_word = begins[bounds]
        starts, ends = bounds[is_word], np.append(bounds[1:], len(tokens))[is_word]
        hashes = self._hashes.of(tokens)(starts, ends)
        _, example, same = np.unique(hashes, return_index=True, return_inverse=True)
        spellings = [
            tokens[s:e].tobytes() for s, e in zip(starts[example].tolist(), ends[example].tolist(), strict=True)
        ]
        numbers = [self._numbers.setdefault(spelling, len(self._numbers)) for spelling in spellings]
        words = np.array(numbers, np.int32)[same]
        return np.insert(words, np.flatnonzero(begins_run[starts]), _NONE)

    def spellings(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The token ids of words, concatenated, and the number of tokens of each."""
        spellings = list(self._numbers)
        words = [np.frombuffer(spellings[number], self._dataset.dtype) for number in numbers.reshape(-1).tolist()]
        tokens = np.concatenate([np.zeros(0, np.int64), *words])
        return tokens, np.array([len(word) for word in words], np.int64)


def _neighbours(parts: NDArray[np.int32]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.uint64]]]:
    """Pairs of frequent (n - 1)-grams at consecutive positions, a chunk at a time.

    Yields the chunk's start, positions counted from it, and each pair as one number.
    """
    for start in range(0, len(parts), CHUNK):
        right = parts[start + 1 : start + 1 + CHUNK]
        left = parts[start : start + len(right)]
        at = np.flatnonzero((left != _NONE) & (right != _NONE))
        yield start, at, left[at].astype(np.uint64) << np.uint64(32) | right[at].astype(np.uint64)


def _pairs(parts: NDArray[np.int32], min_count: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The frequent pairs of neighbours, ascending, and their counts."""
    keys = np.empty(np.count_nonzero((parts[:-1] != _NONE) & (parts[1:] != _NONE)), np.uint64)
    done = 0
    for _, _, some in _neighbours(parts):
        keys[done : done + len(some)] = some
        done += len(some)
    keys.sort()
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    counts = np.diff(starts, append=len(keys))
    frequent = counts >= min_count
    return keys[starts[frequent]], counts[frequent]


def _renumber(parts: NDArray[np.int32], keys: NDArray[np.uint64]) -> None:
    """Replace each element by the number in `keys` of the pair that begins there, or _NONE."""
    for start, at, some in _neighbours(parts):
        parts[start : start + CHUNK] = _NONE
        number = np.searchsorted(keys, some)
        frequent = np.append(keys, ~np.uint64(0))[number] == some
        parts[start + at[frequent]] = number[frequent]


def _rate(levels: list[_Ngrams]) -> None:
    """Set `pmi` and `best` of the last level, the n-grams of n words, from the earlier levels."""
    level, n = levels[-1], len(levels)
    cut = np.full(len(level.counts), -np.inf)
    for head in range(1, n):  # words of the first part; the rest has its best division
        first, rest = _part(levels, n, 0, head), _part(levels, n, head, n - head)
        cut = np.maximum(cut, levels[head - 1].log_p[first] + levels[n - head - 1].best[rest])
    level.best = np.maximum(level.log_p, cut)
    # Rounded, so that the order does not depend on how a processor rounds logarithms.
    level.pmi = np.round(level.log_p - cut, 4).astype(np.float32)


def _part(levels: list[_Ngrams], n: int, skip: int, length: int) -> NDArray[np.integer]:
    """For each n-gram of n words, the number of its part of `length` words after the first `skip`."""
    part: NDArray[np.integer] = np.arange(len(levels[n - 1].counts))
    for words in range(n, n - skip, -1):
        part = levels[words - 1].last[part]
    for words in range(n - skip, length, -1):
        part = levels[words - 1].first[part]
    return part


def _sizes(level: _Ngrams, n: int, max_words: int) -> NDArray[np.uint32]:
    """The smallest size of a list that has each n-gram; _NEVER if its PMI is not positive.

    The shares are the paper's: 1/2, 1/4, ..., with equal shares for the two largest n. Equal PMI is ranked by
    count.
    """
    share = 0.5 ** min(n - 1, max_words - 2)
    order = np.lexsort((-level.counts, -level.pmi))
    order = order[level.pmi[order] > 0]
    sizes = np.full(len(level.counts), _NEVER)
    sizes[order] = np.ceil(np.arange(1, len(order) + 1) / share)
    return sizes


def _cover(smallest: NDArray[np.uint32], parts: NDArray[np.int32], sizes: NDArray[np.uint32], n: int) -> None:
    """Lower `smallest`, at each of the n positions of each occurrence, to the n-gram's size in `sizes`."""
    sizes = np.append(sizes, _NEVER)  # for _NONE
    for start in range(0, len(parts), CHUNK):
        some = sizes[parts[start : start + CHUNK]]
        for first in range(start, start + n):
            covered = smallest[first : first + len(some)]
            np.minimum(covered, some[: len(covered)], out=covered)
