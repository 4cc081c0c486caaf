"""The shard format: round trips, byte reproducibility, and every kind of damage found and named."""

import dataclasses
import hashlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import webdataset as wds
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.common.errors import DamagedData, UserError
from data_prep.format import Dataset, ShardWriter
from data_prep.format.manifest import index_fingerprint
from data_prep.format.shard_format import check_index, read_index
from data_prep.inspection import verify_data_set
from tests.support.datasets import documents_of, edit_manifest, make_dataset, random_dataset
from tests.support.prep import tree

DOCUMENTS = st.lists(st.lists(st.integers(0, 99_999), min_size=1, max_size=40), min_size=1, max_size=30)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return random_dataset(tmp_path / "set")


@settings(max_examples=40, deadline=None)
@given(DOCUMENTS, st.sampled_from([1, 7, 50]), st.sampled_from([1, 500, 1 << 20]), *[st.booleans()] * 3)
def test_round_trip(tmp_path_factory, documents, block_tokens, shard_bytes, wide, with_words, with_targets):
    folder = tmp_path_factory.mktemp("set")
    vocab_size = 65_537 if wide else 65_536
    documents = [[token % vocab_size for token in document] for document in documents]
    words = [np.array(document) % 3 == 0 for document in documents] if with_words else None
    ids = [f"é{n}" if n % 2 else n for n in range(len(documents))] if with_words else None
    targets = [np.array(document) % 7 == 0 for document in documents] if with_targets else None
    dataset = make_dataset(folder / "a", documents, vocab_size, block_tokens, shard_bytes, words, ids, targets)
    assert dataset.manifest.format_version == 1 + with_targets
    assert documents_of(dataset) == documents
    assert dataset.manifest.totals.documents == len(documents)
    assert dataset.manifest.totals.tokens == sum(map(len, documents))
    assert dataset.tokens(0).dtype == (np.uint32 if wide else np.uint16)
    for block in range(dataset.n_blocks):
        lengths = dataset.document_lengths(block)
        np.testing.assert_array_equal(np.cumsum(lengths), dataset.document_ends(block))
        assert lengths[:-1].sum() < block_tokens  # the block closed with the document that reached its size
        starts = dataset.word_starts(block)
        assert (starts is not None) == with_words
        if starts is not None:
            np.testing.assert_array_equal(starts, dataset.tokens(block) % 3 == 0)
        bits = dataset.targets(block)
        assert (bits is not None) == with_targets
        if bits is not None:
            np.testing.assert_array_equal(bits, dataset.tokens(block) % 7 == 0)
    stored = [dataset.ids(block) for block in range(dataset.n_blocks)]
    assert [id for part in stored for id in part or []] == (ids or [])
    assert (None in stored) == (ids is None)


@pytest.mark.parametrize("ids, lengths, made_for_targets, targets, reason", [
    ([7, 65_536], [1, 1], False, None, "id 65536 does not fit"),
    ([7], [1, 0], False, None, "lengths do not add up"),
    ([7, 8], [1], False, None, "lengths do not add up"),
    ([7], [1], True, None, "targets come with every"),
    ([7], [1], False, np.array([True]), "targets come with every"),
])  # fmt: skip
def test_a_refused_batch_leaves_no_partial_shard(tmp_path, ids, lengths, made_for_targets, targets, reason):
    def add(writer):
        writer.add(np.array([5]), np.array([1]), targets=np.array([True]) if made_for_targets else None)
        writer.add(np.array(ids), np.array(lengths), targets=targets)

    writer = ShardWriter(tmp_path, 0, np.dtype("<u2"), block_tokens=1, targets=made_for_targets)
    with pytest.raises(ValueError, match=reason), writer:
        add(writer)
    assert not list(tmp_path.iterdir())


def test_ids_that_no_reader_would_take_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.format.shard_writer.MAX_IDS_BYTES", 20)
    make_dataset(tmp_path / "set", [[5], [6]], ids=["a" * 6, "b" * 7])
    with pytest.raises(UserError, match=r"more than 20 bytes\. Leave out --id-field"):
        make_dataset(tmp_path / "more", [[5], [6]], ids=["a" * 6, "b" * 8])


@settings(max_examples=20, deadline=None)
@given(DOCUMENTS, st.integers(1, 60), st.lists(st.integers(0, 30), max_size=4))
def test_batches_do_not_change_the_bytes(tmp_path_factory, documents, block_tokens, cuts):
    folder = tmp_path_factory.mktemp("set")
    make_dataset(folder / "single", documents, 100_000, block_tokens)
    (folder / "batched").mkdir()
    bounds = [0, *sorted(min(cut, len(documents)) for cut in cuts), len(documents)]
    with ShardWriter(folder / "batched", 0, np.dtype("<u4"), block_tokens) as writer:
        for start, stop in itertools.pairwise(bounds):
            batch = documents[start:stop]
            lengths = np.array([len(document) for document in batch], dtype=int)
            writer.add(np.array(list(itertools.chain(*batch)), dtype=int), lengths)
    assert tree(folder / "batched") == tree(folder / "single" / "shards")


def test_stock_webdataset_reads_it(tmp_path):
    documents = [[7 + n % 900] * (n % 50 + 1) for n in range(60)]
    ids = [f"doc/{n}.é" if n % 2 else n for n in range(60)]
    targets = [np.array(document) % 3 == 0 for document in documents]
    dataset = make_dataset(tmp_path / "set", documents, block_tokens=300, shard_bytes=4000, ids=ids, targets=targets)
    assert len(dataset.manifest.shards) > 2
    urls = [str(dataset.path / "shards" / shard.name) for shard in dataset.manifest.shards]
    samples = list(wds.WebDataset(urls, shardshuffle=False).decode())
    assert [sample["__key__"] for sample in samples] == [dataset.key(block) for block in range(dataset.n_blocks)]
    for block, sample in enumerate(samples):
        np.testing.assert_array_equal(sample["tokens.npy"], dataset.tokens(block))
        np.testing.assert_array_equal(sample["ends.npy"], dataset.document_ends(block))
        bits = np.unpackbits(sample["targets.npy"], count=dataset.n_tokens(block), bitorder="little").astype(bool)
        np.testing.assert_array_equal(bits, dataset.targets(block))
    assert [id for sample in samples for id in sample["ids.json"]] == ids


def test_swapped_shards_are_noticed(dataset):
    shards = json.loads((dataset.path / "manifest.json").read_bytes())["shards"]
    edit_manifest(dataset.path, shards=shards[::-1])
    with pytest.raises(DamagedData, match="the index fingerprint is"):
        Dataset(dataset.path)
    edit_manifest(dataset.path, index_fingerprint=...)  # a data set of an earlier version
    reopened = Dataset(dataset.path)
    with pytest.raises(DamagedData, match="fingerprint"):
        reopened.check_indexes()
    with pytest.raises(DamagedData, match="fingerprint"):
        _ = reopened.table
    assert any("the fingerprint is" in problem for problem in verify_data_set(dataset.path))


@pytest.mark.parametrize("change, message", [
    *(({"format_version": version}, "this Maskwright reads versions 1 and 2") for version in (3, "2", True, None)),
    ({"format": "other"}, "format is 'other'"),
    ({"format": None}, "format is None"),
    ({"dtype": "int8"}, "dtype 'int8'"),
    ({"shards": []}, "do not add up"),
    ({"tokenizer": {}}, "sha256"),
    ({"totals": {"documents": "1", "tokens": 1, "blocks": 1}}, "documents is '1'"),
    ({"extra": 1}, "extra"),
])  # fmt: skip
def test_bad_manifest_is_refused(dataset, change, message):
    edit_manifest(dataset.path, **change)
    with pytest.raises(UserError, match=message):
        Dataset(dataset.path)


@pytest.mark.parametrize("text, message", [("{", "JSON"), ("{}", "it has no key `format`"), ("[]", "not an object")])
def test_a_manifest_of_nothing_says_what_to_do(dataset, text, message):
    (dataset.path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=f"{message}.* prepare this one again with `maskwright prep run`"):
        Dataset(dataset.path)


def _with_other_lengths(dataset: Dataset) -> None:
    """Exchange the lengths of two documents of a block in an index, and give the manifest its new SHA-256."""
    shard = dataset.manifest.shards[0]
    path = dataset.path / "shards" / shard.index_name
    data = bytearray(path.read_bytes())
    header, table, lengths = read_index(bytes(data))
    place = next(n for n in range(int(table["documents"][0]) - 1) if lengths[n] != lengths[n + 1])
    offset = len(data) - 4 * int(header["documents"]) + 4 * place
    data[offset : offset + 8] = data[offset + 4 : offset + 8] + data[offset : offset + 4]
    path.write_bytes(data)
    shards = dataclasses.asdict(dataset.manifest)["shards"]
    shards[0]["index_sha256"] = hashlib.sha256(data).hexdigest()
    edit_manifest(dataset.path, shards=shards)


def test_document_lengths_are_covered_by_the_index_fingerprint(dataset):
    _with_other_lengths(dataset)
    with pytest.raises(DamagedData, match=r"the index fingerprint is .* the shards' indexes give"):
        Dataset(dataset.path)


@pytest.mark.parametrize("known", [True, False], ids=["with its fingerprint", "of an earlier version"])
def test_document_lengths_must_have_the_checksum_of_the_ends(dataset, known):
    """Also where somebody made the manifest agree with the index, or it is of a version without the fingerprint."""
    edit_manifest(dataset.path, index_fingerprint=...)
    _with_other_lengths(dataset)
    if known:
        edit_manifest(dataset.path, index_fingerprint=index_fingerprint(Dataset(dataset.path).manifest.shards))
    with pytest.raises(DamagedData, match=r"the document lengths of block \d+_\d+ do not have the checksum"):
        Dataset(dataset.path).document_lengths(0)
    assert any("differ from the document lengths" in problem for problem in verify_data_set(dataset.path))


# Targets, in version 2 of the format


def test_an_index_with_a_block_without_targets_is_refused(tmp_path):
    dataset = random_dataset(tmp_path / "set", targets=True)
    shard = dataset.manifest.shards[0]
    header, table, lengths = read_index((dataset.path / "shards" / shard.index_name).read_bytes())
    check_index(header, table, lengths, 2, shard.bytes)
    table = table.copy()
    table["targets_offset"][1] = 0
    with pytest.raises(ValueError, match="a block has no targets"):
        check_index(header, table, lengths, 2, shard.bytes)
    table["targets_offset"][1] = shard.bytes - 1
    with pytest.raises(ValueError, match="a block's targets would lie beyond the end"):
        check_index(header, table, lengths, 2, shard.bytes)


@pytest.mark.parametrize("version, other", [(1, 2), (2, 1)])
def test_a_manifest_of_the_other_version_is_refused(tmp_path, version, other):
    targets = [np.array([False, True])] if version == 2 else None
    path = make_dataset(tmp_path / "set", [[5, 6]], targets=targets).path
    edit_manifest(path, format_version=other)
    with pytest.raises(UserError, match=rf"00000-00000.index has \d+ bytes, by format version {other} \d+"):
        Dataset(path)
