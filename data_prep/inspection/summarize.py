"""What is in a data set, for people: one pass over its tokens, and one document at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_prep.errors import UserError
from data_prep.format import Dataset, SourceInfo, entropy
from data_prep.format.token_frequencies import token_counts
from data_prep.inspection.token_decoder import TokenDecoder, open_vocabulary

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
SEQ_LENS = (128, 512, 1024, 8192)
SPECIALS_PER_PIECE = 2  # a trainer puts [CLS] and [SEP] around each piece
_GATHER_DOCUMENTS = 1 << 20  # document lengths counted together

Progress = Callable[[int, int], None]


@dataclass
class Lengths:
    """How many documents have each length: values and counts int64 [distinct], ascending.

    The distinct lengths of n tokens are at most sqrt(2 n), so this stays small for any number of documents.
    """

    values: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, lengths: np.ndarray) -> None:
        """Count the documents of `lengths` [documents]."""
        values, counts = np.unique(lengths.astype(np.int64), return_counts=True)
        merged, place = np.unique(np.concatenate([self.values, values]), return_inverse=True)
        total = np.zeros(len(merged), np.int64)
        np.add.at(total, place, np.concatenate([self.counts, counts]))
        self.values, self.counts = merged, total

    def summary(self) -> dict[str, float]:
        """Mean, least, largest, and percentiles (inverted empirical distribution)."""
        upto = np.cumsum(self.counts)
        ranks = [-(-percentile * int(upto[-1]) // 100) for percentile in PERCENTILES]
        found = self.values[np.searchsorted(upto, ranks)]
        return {
            "mean": float(self.values @ self.counts / upto[-1]),
            "min": int(self.values[0]),
            **{f"p{percentile}": int(value) for percentile, value in zip(PERCENTILES, found, strict=True)},
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

    def fill_alone(self, seq_len: int) -> dict[str, Any]:
        """Share of slots that are not padding where no row holds pieces of two documents.

        Documents are cut into pieces of at most `seq_len` - 2 tokens; each piece has a row, with [CLS] and [SEP].
        """
        capacity = seq_len - SPECIALS_PER_PIECE
        pieces = -(-self.values // capacity)
        rows = int(pieces @ self.counts)
        filled = int(self.values @ self.counts) + SPECIALS_PER_PIECE * rows
        cut = int(self.counts[self.values > capacity].sum())
        return {"seq_len": seq_len, "alone": filled / (rows * seq_len), "rows_alone": rows, "documents_cut": cut}


@dataclass
class _LengthGroup:
    """The inputs of one name, and what is counted in their blocks; `words` only where blocks tell word starts.

    `targets` are 0 in data sets without pairs.
    """

    name: str | None
    token_counts: np.ndarray
    inputs: list[SourceInfo] = field(default_factory=list)
    documents: int = 0
    words: int | None = None
    targets: int = 0

    def merged(self, other: "_LengthGroup") -> "_LengthGroup":
        words = [group.words for group in (self, other) if group.words is not None]
        return _LengthGroup(
            None,
            self.token_counts + other.token_counts,
            self.inputs + other.inputs,
            self.documents + other.documents,
            sum(words) if words else None,
            self.targets + other.targets,
        )


def summary(
    dataset: Dataset, seq_lens: Sequence[int] = SEQ_LENS, top: int = 20, progress: Progress | None = None
) -> dict[str, Any]:
    """All that `prep info` shows, ready for JSON; reads every token once.

    Memory holds a count for each id of the vocabulary and named group of inputs, and one block. `progress` is told the
    tokens read and those of the data set. Raises UserError for an empty data set and DamagedData for a damaged one.
    """
    manifest, vocabulary = dataset.manifest, open_vocabulary(dataset)
    if not manifest.totals.documents:
        raise UserError(f"{dataset.location} holds no document.")
    dataset.check_files()
    unk = manifest.tokenizer.special_ids.get("unk")
    groups, lengths = _count(dataset, progress)
    total = groups[0]
    for group in groups[1:]:
        total = total.merged(group)
    named = any(group.name for group in groups)
    return {
        "fingerprint": manifest.fingerprint,
        **_group_facts(total, vocabulary, unk),
        "blocks": manifest.totals.blocks,
        "shards": len(manifest.shards),
        "bytes": sum(shard.bytes + shard.index_bytes for shard in manifest.shards),
        "dtype": manifest.dtype,
        **({"targets": total.targets} if dataset.has_targets else {}),
        "document_length": lengths.summary(),
        "length_histogram": lengths.histogram(),
        "fill": [lengths.fill_alone(seq_len) for seq_len in sorted(set(seq_lens))],
        "most_frequent": _most_frequent(total.token_counts, vocabulary, top),
        "rank_frequency": _rank_frequency(total.token_counts),
        "vocabulary_used": int(np.count_nonzero(total.token_counts)),
        "tokenizer": {
            "sha256": manifest.tokenizer.sha256,
            "vocab_size": manifest.tokenizer.vocab_size,
            "special_ids": manifest.tokenizer.special_ids,
            "continuation_prefix": manifest.tokenizer.continuation_prefix,
        },
        "sources": [
            {"name": group.name, **_group_facts(group, vocabulary, unk)}
            for group in groups
            if named and (group.documents or group.inputs)
        ],
    }


def _count(dataset: Dataset, progress: Progress | None) -> tuple[list[_LengthGroup], Lengths]:
    """The groups of inputs by name, then one (None) for blocks of no input; and all documents' lengths."""
    table = dataset.table
    groups, group_of_block = _groups(dataset, table["task"])
    lengths, gathered, n_gathered, tokens = Lengths(), [], 0, 0
    for block, group in enumerate(groups[number] for number in group_of_block):
        group.token_counts += token_counts(dataset, block)
        if (starts := dataset.word_starts(block)) is not None:
            group.words = (group.words or 0) + int(np.count_nonzero(starts))
        if (targets := dataset.targets(block)) is not None:
            group.targets += int(np.count_nonzero(targets))
        gathered.append(dataset.document_lengths(block))
        group.documents += len(gathered[-1])
        n_gathered += len(gathered[-1])
        if n_gathered >= _GATHER_DOCUMENTS or block == dataset.n_blocks - 1:
            lengths.add(np.concatenate(gathered))
            gathered, n_gathered = [], 0
        tokens += int(table["tokens"][block])
        if progress:
            progress(tokens, dataset.manifest.totals.tokens)
    return groups, lengths


def _groups(dataset: Dataset, tasks: np.ndarray) -> tuple[list[_LengthGroup], np.ndarray]:
    """The groups, and the group of each block, int64 [blocks]; the last group is of blocks that no input claims."""
    sources = dataset.manifest.sources
    names = list(dict.fromkeys(source.source for source in sources))
    groups = [_LengthGroup(name, np.zeros(dataset.manifest.tokenizer.vocab_size, np.int64)) for name in [*names, None]]
    place = {name: number for number, name in enumerate(names)}
    for source in sources:
        groups[place[source.source]].inputs.append(source)
    order = sorted((source for source in sources if source.tasks), key=lambda source: source.first_task)
    if not order:
        return groups, np.full(len(tasks), len(names))
    first = np.array([source.first_task for source in order])
    end = first + [source.tasks for source in order]
    number = np.array([place[source.source] for source in order])
    found = np.searchsorted(first, tasks, side="right") - 1
    return groups, np.where((found >= 0) & (tasks < end[found]), number[found], len(names))


def _group_facts(group: _LengthGroup, vocabulary: TokenDecoder | None, unk: int | None) -> dict[str, Any]:
    """Counts and rates of a group of inputs; None where it cannot be known."""
    counts, tokens = group.token_counts, int(group.token_counts.sum())
    words = group.words
    if words is None and vocabulary is not None and vocabulary.begins_word is not None and tokens:
        words = int(counts[vocabulary.begins_word].sum())
    text_bytes = sum(source.text_bytes for source in group.inputs)
    unknown = int(counts[unk]) if unk is not None and tokens else 0
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
        "left_out": _left_out(group.inputs),
    }


def _left_out(sources: Sequence[SourceInfo]) -> dict[str, int]:
    reasons = sorted({reason for source in sources for reason in source.left_out})
    return {reason: sum(source.left_out.get(reason, 0) for source in sources) for reason in reasons}


def _most_frequent(counts: np.ndarray, vocabulary: TokenDecoder | None, top: int) -> list[dict[str, Any]]:
    order = np.argsort(-counts, kind="stable")[:top]
    total = int(counts.sum())
    return [
        {
            "id": int(id),
            "token": vocabulary.token(int(id)) if vocabulary else None,
            "text": vocabulary.text([int(id)]) if vocabulary else None,
            "count": int(counts[id]),
            "share": int(counts[id]) / total,
        }
        for id in order
        if counts[id]
    ]


def _rank_frequency(counts: np.ndarray) -> list[dict[str, int]]:
    """The count of the tokens at ranks 1, 2, 3, ... that are evenly spaced on a logarithmic scale."""
    ordered = np.sort(counts[counts > 0])[::-1]
    ranks = np.unique(np.geomspace(1, len(ordered), 60).round().astype(int))
    return [{"rank": int(rank), "count": int(ordered[rank - 1])} for rank in ranks]
