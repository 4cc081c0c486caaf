"""Statistics of a data set: counts by source, document lengths, most frequent tokens."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from data_prep.errors import UserError
from data_prep.format import Dataset, SourceInfo, entropy
from data_prep.inspection.show_document import open_vocabulary, text_of

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
SEQ_LENS = (128, 512, 1024, 8192)
SPECIALS = 2  # [CLS] and [SEP] of each row
_MERGED_BLOCKS = 64  # blocks of one count of document lengths

Progress = Callable[[int, int], None]


@dataclass
class Lengths:
    """Number of documents of each length: values and counts int64 [distinct], ascending.

    n tokens have at most sqrt(2 n) distinct lengths, so this stays small for any number of documents.
    """

    values: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, lengths: np.ndarray) -> None:
        """Count the documents of `lengths` [documents]."""
        values, counts = np.unique(lengths.astype(np.int64), return_counts=True)
        merged, index = np.unique(np.concatenate([self.values, values]), return_inverse=True)
        total = np.zeros(len(merged), np.int64)
        np.add.at(total, index, np.concatenate([self.counts, counts]))
        self.values, self.counts = merged, total

    def summary(self) -> dict[str, float]:
        """Mean, minimum, maximum, and percentiles (inverted empirical distribution)."""
        ends = np.cumsum(self.counts)
        ranks = [-(-percentile * int(ends[-1]) // 100) for percentile in PERCENTILES]
        values = self.values[np.searchsorted(ends, ranks)]
        return {
            "mean": float(self.values @ self.counts / ends[-1]),
            "min": int(self.values[0]),
            **{f"p{percentile}": int(value) for percentile, value in zip(PERCENTILES, values, strict=True)},
            "max": int(self.values[-1]),
        }

    def histogram(self) -> list[dict[str, int]]:
        """Documents and tokens by length, in bins that double (1, 2-3, 4-7, ...), from the first that has any."""
        bins = np.frexp(self.values.astype(float))[1] - 1
        documents, tokens = (np.bincount(bins, weights) for weights in (self.counts, self.counts * self.values))
        rows = zip(documents.tolist(), tokens.tolist(), strict=True)
        return [
            {"from": 1 << bin, "to": (2 << bin) - 1, "documents": int(n), "tokens": int(m)}
            for bin, (n, m) in enumerate(rows)
            if bin >= bins[0]
        ]

    def documents_cut(self, seq_len: int) -> int:
        """Number of documents that are longer than a row of `seq_len` slots."""
        return int(self.counts[self.values > seq_len - SPECIALS].sum())


@dataclass
class _Group:
    """Inputs with one source name, and counts over their blocks. `words` is None if the blocks have no word starts."""

    name: str | None
    token_counts: np.ndarray
    inputs: list[SourceInfo] = field(default_factory=list)
    documents: int = 0
    words: int | None = None
    targets: int = 0

    def add(self, other: "_Group") -> None:
        self.token_counts = self.token_counts + other.token_counts
        self.inputs = self.inputs + other.inputs
        self.documents += other.documents
        self.targets += other.targets
        if other.words is not None:
            self.words = (self.words or 0) + other.words


def summary(
    dataset: Dataset, seq_lens: Sequence[int] = SEQ_LENS, top: int = 20, progress: Progress | None = None
) -> dict[str, Any]:
    """Statistics that `prep info` shows, ready for JSON. Reads every token.

    Memory holds one block, and a count per id of the vocabulary for each source. `progress` receives the tokens read
    and all tokens. Raises UserError for an empty data set and DamagedData for a damaged one.
    """
    manifest, tokenizer = dataset.manifest, open_vocabulary(dataset)
    if not manifest.totals.documents:
        raise UserError(f"{dataset.location} holds no document.")
    dataset.check_files()
    groups, lengths = _count(dataset, progress)
    total = _Group(None, np.zeros(manifest.tokenizer.vocab_size, np.int64))
    for group in groups:
        total.add(group)
    named = any(group.name for group in groups)
    return {
        "fingerprint": manifest.fingerprint,
        **_statistics(total, dataset),
        "blocks": manifest.totals.blocks,
        "shards": len(manifest.shards),
        "bytes": sum(shard.bytes + shard.index_bytes for shard in manifest.shards),
        "dtype": manifest.dtype,
        **({"targets": total.targets} if dataset.has_targets else {}),
        "document_length": lengths.summary(),
        "length_histogram": lengths.histogram(),
        "fill": [{"seq_len": n, "documents_cut": lengths.documents_cut(n)} for n in sorted(set(seq_lens))],
        "most_frequent": _most_frequent(total.token_counts, tokenizer, top),
        "vocabulary_used": int(np.count_nonzero(total.token_counts)),
        "tokenizer": {
            "sha256": manifest.tokenizer.sha256,
            "vocab_size": manifest.tokenizer.vocab_size,
            "special_ids": manifest.tokenizer.special_ids,
            "continuation_prefix": manifest.tokenizer.continuation_prefix,
        },
        "sources": [
            {"name": group.name, **_statistics(group, dataset)}
            for group in groups
            if named and (group.documents or group.inputs)
        ],
    }


def _count(dataset: Dataset, progress: Progress | None) -> tuple[list[_Group], Lengths]:
    """The groups by source name, then one (None) for blocks of no input; and the lengths of all documents."""
    table = dataset.table
    groups, group_of_block = _groups(dataset, table["task"])
    lengths, pending, tokens = Lengths(), [], 0
    for block, group in enumerate(groups[number] for number in group_of_block):
        group.token_counts += dataset.token_counts(block)
        if (starts := dataset.word_starts(block)) is not None:
            group.words = (group.words or 0) + int(np.count_nonzero(starts))
        if (targets := dataset.targets(block)) is not None:
            group.targets += int(np.count_nonzero(targets))
        pending.append(dataset.document_lengths(block))
        group.documents += len(pending[-1])
        if len(pending) == _MERGED_BLOCKS or block == dataset.n_blocks - 1:
            lengths.add(np.concatenate(pending))
            pending = []
        tokens += int(table["tokens"][block])
        if progress:
            progress(tokens, dataset.manifest.totals.tokens)
    return groups, lengths


def _groups(dataset: Dataset, tasks: np.ndarray) -> tuple[list[_Group], np.ndarray]:
    """The groups, and the group of each block, int64 [blocks]. The last group has the blocks of no input."""
    sources = dataset.manifest.sources
    names = list(dict.fromkeys(source.source for source in sources))
    groups = [_Group(name, np.zeros(dataset.manifest.tokenizer.vocab_size, np.int64)) for name in [*names, None]]
    group_of_block = np.full(len(tasks), len(names))
    for source in sources:
        groups[names.index(source.source)].inputs.append(source)
    order = sorted((source for source in sources if source.tasks), key=lambda source: source.first_task)
    if order:
        first = np.array([source.first_task for source in order])
        end = first + [source.tasks for source in order]
        number = np.array([names.index(source.source) for source in order])
        index = np.searchsorted(first, tasks, side="right") - 1
        group_of_block = np.where((index >= 0) & (tasks < end[index]), number[index], len(names))
    return groups, group_of_block


def _statistics(group: _Group, dataset: Dataset) -> dict[str, Any]:
    """Counts and rates of a group; None for values that the data set does not determine."""
    counts, tokens, words = group.token_counts, int(group.token_counts.sum()), group.words
    if words is None and dataset.begins_word is not None and tokens:
        words = int(counts[dataset.begins_word].sum())
    unk = dataset.manifest.tokenizer.special_ids.get("unk")
    unknown = int(counts[unk]) if unk is not None else 0
    text_bytes = sum(source.text_bytes for source in group.inputs)
    left_out = sum((Counter(source.left_out) for source in group.inputs), Counter())
    return {
        "documents": group.documents,
        "tokens": tokens,
        "words": words,
        "tokens_per_word": tokens / words if words else None,
        "text_bytes": text_bytes or None,
        "bytes_per_token": text_bytes / tokens if text_bytes and tokens else None,
        "unknown": unknown,
        "unknown_rate": unknown / tokens if tokens else None,
        "unigram_entropy": entropy(counts) if tokens else None,
        "inputs": len(group.inputs),
        "left_out": dict(sorted(left_out.items())),
    }


def _most_frequent(counts: np.ndarray, tokenizer: Tokenizer | None, top: int) -> list[dict[str, Any]]:
    order = np.argsort(-counts, kind="stable")[:top]
    return [
        {
            "id": int(id),
            "token": tokenizer.id_to_token(int(id)) if tokenizer else None,
            "text": text_of(tokenizer, [int(id)]) if tokenizer else None,
            "count": int(counts[id]),
            "share": int(counts[id]) / int(counts.sum()),
        }
        for id in order
        if counts[id]
    ]
