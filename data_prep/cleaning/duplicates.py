"""Exact duplicates over all tasks: hashes of documents, and which documents repeat an earlier one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from data_prep.cleaning.repeats import MAX_BYTES, Report, resolve


def document_hashes(texts: Sequence[str]) -> np.ndarray:
    """xxh3_128 of the texts' UTF-8, high half first, uint64 [n_texts, 2]."""
    digest = xxhash.xxh3_128_digest
    digests = b"".join([digest(text.encode("utf-8", "surrogatepass")) for text in texts])
    return np.frombuffer(digests, dtype=">u8").reshape(-1, 2).astype(np.uint64)


def resolve_exact(
    hash_files: Sequence[Path], drop_files: Sequence[Path], max_bytes: int = MAX_BYTES, report: Report | None = None
) -> np.ndarray:
    """Write for each task which documents have the hash of an earlier one (of an earlier task, or of the same task);
    the first stays. Files, memory, time and result: see `repeats.resolve`."""
    return resolve(hash_files, drop_files, any_column=False, max_bytes=max_bytes, report=report)
