"""docs/data-format.md: its printed reader reads a written data set, and its numbers equal the code's."""

import dataclasses
import hashlib
import io
import re
import tarfile

import numpy as np
import pytest

from data_prep.cleaning import filter_forms, known_filters
from data_prep.format import ShardInfo, ShardWriter, SourceInfo, TokenizerInfo
from data_prep.format.manifest import MAX_MANIFEST_BYTES, MAX_VOCABULARY, DataSetTotals
from data_prep.format.shard_format import BLOCK_RECORD, MAX_IDS_BYTES
from data_prep.jobs import deduplication, task_worker
from tests.support.datasets import make_dataset
from tests.support.forked import ROOT

TEXT = (ROOT / "docs" / "data-format.md").read_text()
CODE = next(code for code in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "def blocks" in code)
# With the changes that the page names for version 2, whose targets are then read in the place of words.
CODE_FOR_TARGETS = (
    CODE.replace('("maskwright-blocks", 1)', '("maskwright-blocks", 2)')
    .replace('ids_sum"', 'ids_sum targets_at targets_sum"')
    .replace('block["words_at"]', 'block["targets_at"]')
)


@pytest.mark.parametrize("kind", ["plain", "words", "ids", "targets"])
def test_printed_reader(tmp_path, kind):
    rng = np.random.default_rng(0)
    documents = [rng.integers(5, 70_000, size=n) for n in rng.integers(1, 300, size=40)]
    bits = [document % 2 == 0 for document in documents]
    given = {"words": {"word_starts": bits}, "targets": {"targets": bits}}.get(kind, {})
    if kind == "ids":
        given = {"word_starts": bits, "ids": [f"é{n}" if n % 2 else n for n in range(len(documents))]}
    dataset = make_dataset(tmp_path / "set", documents, 70_000, 1000, 9000, **given)
    namespace: dict = {}
    exec(CODE_FOR_TARGETS if kind == "targets" else CODE, namespace)
    read = list(namespace["blocks"](dataset.path))
    assert len(read) == dataset.n_blocks > 3
    for block, (tokens, lengths, word_bits, ids) in enumerate(read):
        np.testing.assert_array_equal(tokens, dataset.tokens(block))
        np.testing.assert_array_equal(lengths, dataset.document_lengths(block))
        assert ids == dataset.ids(block)
        wanted = dataset.targets(block) if kind == "targets" else dataset.word_starts(block)
        np.testing.assert_array_equal(word_bits, wanted)


def test_printed_reader_is_short_and_needs_numpy_alone():
    assert len(CODE.split("def blocks", 1)[1].splitlines()) <= 30
    imported = re.findall(r"^(?:import|from) (.+)$", CODE, re.M)
    assert imported == ["hashlib, json, pathlib", "numpy as np"]


def test_documented_bytes_of_a_tar(tmp_path):
    """The tar is built again with Python's tarfile and numpy alone."""
    starts, ids = [np.array([1, 0]), np.array([1])], ["a", 7]
    dataset = make_dataset(tmp_path / "set", [[5, 6], [7]], word_starts=starts, ids=ids)
    members = {
        "ends.npy": np.array([2, 3], "<u4"),
        "ids.json": b'["a",7]',
        "tokens.npy": np.array([5, 6, 7], "<u2"),
        "words.npy": np.array([0b101], "|u1"),
    }
    with tarfile.open(tmp_path / "again.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members.items():
            data = io.BytesIO(content if isinstance(content, bytes) else b"")
            if isinstance(content, np.ndarray):
                np.save(data, content)
            member = tarfile.TarInfo(f"00000_000000000.{name}")
            member.size, member.mode = len(data.getvalue()), 0o444
            tar.addfile(member, io.BytesIO(data.getvalue()))
    assert (dataset.path / "shards" / "00000-00000.tar").read_bytes() == (tmp_path / "again.tar").read_bytes()


@pytest.mark.parametrize("version", [1, 2])
def test_documented_fingerprint(tmp_path, version):
    targets = None if version == 1 else [np.array([True, False, True]), np.array([False])]
    manifest = make_dataset(tmp_path / "set", [[5, 6, 7], [8]], targets=targets).manifest
    line = f"maskwright-blocks {version} {manifest.tokenizer.sha256} {manifest.dtype}\n".encode()
    index = (tmp_path / "set" / "shards" / manifest.shards[0].index_name).read_bytes()
    record = np.frombuffer(index[40 : 128 + 16 * version], "<u8")
    content = record[[1, 2, 7, 8, 9, *([14] if targets else [])]]
    assert hashlib.sha256(line + content.tobytes()).hexdigest() == manifest.fingerprint
    lines = f"{hashlib.sha256(index).hexdigest()}\n".encode()
    assert hashlib.sha256(lines).hexdigest() == manifest.index_fingerprint


def test_documented_sizes():
    assert f"{ShardWriter.BLOCK_TOKENS:,} (2^18) tokens" in TEXT
    assert ShardWriter.SHARD_BYTES == 256 << 20
    assert MAX_VOCABULARY == 1 << 24
    assert MAX_IDS_BYTES == 64 << 20
    assert MAX_MANIFEST_BYTES == 1 << 30
    assert f"| {BLOCK_RECORD.itemsize} × blocks |" in TEXT
    record = {name: BLOCK_RECORD.fields[name][1] for name in BLOCK_RECORD.names}
    rows = {
        "0, 4": ["task", "number"],
        "8, 16": ["documents", "tokens"],
        "24": ["first_document"],
        "32, 40, 48": ["tokens_offset", "ends_offset", "words_offset"],
        "56, 64, 72": ["tokens_xxh3", "ends_xxh3", "words_xxh3"],
        "80, 88, 96": ["ids_offset", "ids_bytes", "ids_xxh3"],
    }
    for offsets, names in rows.items():
        assert f"\n| {offsets} |" in TEXT
        assert [record[name] for name in names] == [int(offset) for offset in offsets.split(", ")]
    assert sorted(record) == sorted(name for names in rows.values() for name in names)


def test_documented_manifest_keys(tmp_path):
    manifest = make_dataset(tmp_path / "set", [[5]]).manifest
    rows = dict(re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|$", TEXT.split("## Manifest")[1].split("\n## ")[0], re.M))
    keys = [key for cell in rows for key in re.findall(r"`(\w+)`", cell)]
    assert sorted(keys) == sorted(dataclasses.asdict(manifest))
    parts = (("tokenizer", TokenizerInfo), ("totals", DataSetTotals), ("shards", ShardInfo), ("sources", SourceInfo))
    for key, cls in parts:
        named = set(re.findall(r"`(\w+)`", rows[f"`{key}`"]))
        assert named >= {field.name for field in dataclasses.fields(cls)}, key


def test_documented_reasons():
    rows = re.findall(r"^\| (`[^|]+`) \| [^|]+ \|$", TEXT.split("## Input")[1].split("\n## ")[0], re.M)
    named = [reason for row in rows for reason in re.findall(r"`([^`]+)`", row)]
    filters = [reason for kind in known_filters().values() for reason in kind.reasons]
    reasons = [*filters, *deduplication.REASONS.values(), "contaminated", "empty", "unreadable"]
    reasons += [task_worker.UNCHANGED, task_worker.LONG_PAIR]
    assert sorted(named) == sorted(reasons)


def test_documented_filters():
    page = (ROOT / "docs" / "cleaning.md").read_text()
    assert [form for form in filter_forms() if f"| `--filter {form}`" not in page] == []
