"""Statistics of a data set: counts by source, document lengths, most frequent tokens."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import entr
from tokenizers import Tokenizer

from data_prep.common.errors import UserError
from data_prep.format import Dataset, SourceInfo
from data_prep.inspection.show_document import open_vocabulary, text_of

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
SEQ_LENS = (128, 512, 1024, 8192)
SPECIALS = 2  # [CLS] and [SEP] of each row


class Lengths:
    """Number of documents of each length.

    n tokens have at most sqrt(2 n) distinct lengths, so this stays small for any number of documents.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, lengths: np.ndarray) -> None:
        """Count the documents of `lengths` [documents]."""
        values, counts = np.unique(lengths, return_counts=True)
        self._counts.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def summary(self) -> dict[str, float]:
        """Mean, minimum, maximum, and percentiles (inverted empirical distribution)."""
        values, counts = np.array(sorted(self._counts.items())).T
        ends = np.cumsum(counts)
        ranks = [-(-percentile * int(ends[-1]) // 100) for percentile in PERCENTILES]
        percentiles = values[np.searchsorted(ends, ranks)].tolist()
        return {
            "mean": float(values @ counts / ends[-1]),
            "min": int(values[0]),
            **{f"p{percentile}": value for percentile, value in zip(PERCENTILES, percentiles, strict=True)},
            "max": int(values[-1]),
        }

    def histogram(self) -> list[dict[str, int]]:
        """Documents and tokens by length, in bins that double (1, 2-3, 4-7, ...), from the first that has any."""
        bins: dict[int, dict[str, int]] = {}
        for bin in range(min(self._counts).bit_length() - 1, max(self._counts).bit_length()):
            bins[bin] = {"from": 1 << bin, "to": (2 << bin) - 1, "documents": 0, "tokens": 0}
        for length, count in self._counts.items():
            bins[length.bit_length() - 1]["documents"] += count
            bins[length.bit_length() - 1]["tokens"] += count * length
        return list(bins.values())

    def documents_cut(self, seq_len: int) -> int:
        """Number of documents that are longer than a row of `seq_len` slots."""
        return sum(count for length, count in self._counts.items() if length > seq_len - SPECIALS)


@dataclass
class _Group:
    """Inputs with one source name, and counts over their blocks. `words` is None if the blocks have no word starts."""

    name: str | None
    token_counts: np.ndarray
    inputs: list[SourceInfo] = field(default_factory=list)
    documents: int = 0
    words: int | None = None
    targets: int = 0


def summary(
    dataset: Dataset,
    seq_lens: Sequence[int] | None = None,
    top: int = 20,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Statistics that `prep info` shows, ready for JSON. Reads every token.

    Memory holds one block, and a count per id of the vocabulary for each source. `progress` receives the tokens read
    and all tokens. Raises UserError for an empty data set and DamagedData for a damaged one.
    """
    manifest, tokenizer = dataset.manifest, open_vocabulary(dataset)
    if not manifest.totals.documents:
        raise UserError(f"{dataset.location} holds no document.")
    dataset.check_files()
    total, groups, lengths = _count(dataset, progress)
    named = any(group.name for group in groups)
    return {
        "fingerprint": manifest.fingerprint,
        **_statistics(total, dataset),
        "left_out_samples": dataset.left_out_samples,
        "blocks": manifest.totals.blocks,
        "shards": len(manifest.shards),
        "bytes": sum(shard.bytes + shard.index_bytes for shard in manifest.shards),
        "dtype": manifest.dtype,
        **({"targets": total.targets} if dataset.has_targets else {}),
        "document_length": lengths.summary(),
        "length_histogram": lengths.histogram(),
        "fill": [{"seq_len": n, "documents_cut": lengths.documents_cut(n)} for n in sorted(set(seq_lens or SEQ_LENS))],
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


def _count(dataset: Dataset, progress: Callable[[int, int], None] | None) -> tuple[_Group, list[_Group], Lengths]:
    """All blocks; the groups by source name, then one (None) for blocks of no input; and the lengths of documents."""
    manifest, table, lengths, tokens = dataset.manifest, dataset.table, Lengths(), 0
    names = [*dict.fromkeys(source.source for source in manifest.sources), None]
    total, *groups = (_Group(name, np.zeros(manifest.tokenizer.vocab_size, np.int64)) for name in (None, *names))
    by_name = dict(zip(names, groups, strict=True))
    for source in manifest.sources:
        for group in (total, by_name[source.source]):
            group.inputs.append(source)
    for block, task in enumerate(table["task"].tolist()):
        origin = manifest.source_of(task)
        counts, documents = dataset.token_counts(block), dataset.document_lengths(block)
        starts, targets = dataset.word_starts(block), dataset.targets(block)
        for group in (total, by_name[origin.source if origin else None]):
            group.token_counts += counts
            group.documents += len(documents)
            if starts is not None:
                group.words = (group.words or 0) + int(np.count_nonzero(starts))
            if targets is not None:
                group.targets += int(np.count_nonzero(targets))
        lengths.add(documents)
        tokens += int(table["tokens"][block])
        if progress:
            progress(tokens, manifest.totals.tokens)
    return total, groups, lengths


def _statistics(group: _Group, dataset: Dataset) -> dict[str, Any]:
    """Counts and rates of a group; None for values that the data set does not determine.

    The tokenizer defines `words`.
    """
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
        "unigram_entropy": float(entr(counts / tokens).sum()) if tokens else None,
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
