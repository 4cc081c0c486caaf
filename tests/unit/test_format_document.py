"""docs/data-format.md: its reader, run as printed, reads what the writer wrote, and its numbers are the code's."""

import hashlib
import re
from pathlib import Path

import numpy as np

from data_prep.format import BLOCK_RECORD, BLOCK_TOKENS, INDEX_HEADER, SHARD_BYTES
from tests.datasets import make_dataset

TEXT = (Path(__file__).parents[2] / "docs" / "data-format.md").read_text()


def documented_reader():
    code = next(code for code in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "def blocks" in code)
    namespace: dict = {}
    exec(code, namespace)
    return namespace["blocks"]


def test_printed_reader(tmp_path):
    rng = np.random.default_rng(0)
    documents = [rng.integers(5, 70_000, size=n) for n in rng.integers(1, 300, size=40)]
    starts = [document % 2 == 0 for document in documents]
    for name, words in (("plain", None), ("words", starts)):
        dataset = make_dataset(tmp_path / name, documents, 70_000, 1000, 9000, words)
        read = list(documented_reader()(dataset.path))
        assert len(read) == dataset.n_blocks > 3
        for block, (tokens, lengths, word_starts) in enumerate(read):
            np.testing.assert_array_equal(tokens, dataset.tokens(block))
            np.testing.assert_array_equal(lengths, dataset.document_lengths(block))
            if words is None:
                assert word_starts is None
            else:
                np.testing.assert_array_equal(word_starts, dataset.word_starts(block))
        np.testing.assert_array_equal(np.concatenate([tokens for tokens, *_ in read]), np.concatenate(documents))


def test_documented_fingerprint(tmp_path):
    dataset = make_dataset(tmp_path / "set", [[5, 6, 7], [8]])
    manifest = dataset.manifest
    line = f"maskwright-blocks 1 {manifest.tokenizer.sha256} {manifest.dtype}\n".encode()
    index = (dataset.path / "shards" / manifest.shards[0].index_name).read_bytes()
    record = np.frombuffer(index[40:120], "<u8")
    assert hashlib.sha256(line + record[[1, 2, 7, 8, 9]].tobytes()).hexdigest() == manifest.fingerprint


def test_documented_sizes():
    assert f"{BLOCK_TOKENS:,} (2^18) tokens" in TEXT
    assert SHARD_BYTES == 256 << 20
    assert INDEX_HEADER.itemsize == 40
    assert BLOCK_RECORD.itemsize == 80
    record = {name: BLOCK_RECORD.fields[name][1] for name in BLOCK_RECORD.names}
    assert (record["documents"], record["tokens"], record["first_document"]) == (8, 16, 24)
    assert [record[f"{name}_offset"] for name in ("tokens", "ends", "words")] == [32, 40, 48]
    assert [record[f"{name}_xxh3"] for name in ("tokens", "ends", "words")] == [56, 64, 72]
