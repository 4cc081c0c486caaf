"""What is in a data set, for people."""

from typing import Any

import numpy as np

from data_prep.format import Dataset

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


def unigram_entropy(dataset: Dataset) -> float:
    """Entropy of the token distribution, in nats a token: the loss of the best prediction that ignores context."""
    counts = np.zeros(dataset.manifest.tokenizer.vocab_size, dtype=np.int64)
    for block in range(dataset.n_blocks):
        counts += np.bincount(dataset.tokens(block), minlength=len(counts))
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


def summary(dataset: Dataset) -> dict[str, Any]:
    """Counts, document length percentiles in tokens, tokenizer, and unigram entropy; reads every token."""
    manifest = dataset.manifest
    lengths = np.concatenate([dataset.document_lengths(block) for block in range(dataset.n_blocks)])
    ranks = np.percentile(lengths, PERCENTILES, method="inverted_cdf")
    return {
        "fingerprint": manifest.fingerprint,
        "documents": manifest.totals.documents,
        "tokens": manifest.totals.tokens,
        "blocks": manifest.totals.blocks,
        "shards": len(manifest.shards),
        "bytes": sum(shard.bytes + shard.index_bytes for shard in manifest.shards),
        "dtype": manifest.dtype,
        "document_length": {
            "mean": manifest.totals.tokens / manifest.totals.documents,
            "min": int(lengths.min()),
            **{f"p{percentile}": int(rank) for percentile, rank in zip(PERCENTILES, ranks, strict=True)},
            "max": int(lengths.max()),
        },
        "unigram_entropy": unigram_entropy(dataset),
        "tokenizer": {
            "sha256": manifest.tokenizer.sha256,
            "vocab_size": manifest.tokenizer.vocab_size,
            "special_ids": manifest.tokenizer.special_ids,
            "continuation_prefix": manifest.tokenizer.continuation_prefix,
        },
        "sources": len(manifest.sources),
        "left_out": {
            reason: sum(source.left_out.get(reason, 0) for source in manifest.sources)
            for reason in sorted({reason for source in manifest.sources for reason in source.left_out})
        },
    }
