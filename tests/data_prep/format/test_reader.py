"""Data set reader: opens from the manifest, checks at each use, needs bounded memory, works in several threads."""

import dataclasses
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from data_prep.common.errors import DamagedData, UserError
from data_prep.format import Dataset, Manifest
from data_prep.format.shard_format import BLOCK_RECORD, INDEX_HEADER
from tests.support.datasets import flip, make_dataset, random_dataset, tokenizer_info
from tests.support.wordpiece_set import SHIP, WORDS, wordpiece_set


@pytest.fixture
def dataset(tmp_path) -> Dataset:
    return Dataset(random_dataset(tmp_path / "set").path)


def shard_path(dataset: Dataset, block: int) -> Path:
    return dataset.path / "shards" / dataset.shard(block).name


def read(dataset: Dataset, block: int) -> np.ndarray:
    out = np.empty(dataset.n_tokens(block), dataset.dtype)
    dataset.read_tokens(block, out)
    return out


def test_opening_touches_no_shard(dataset):
    os.rename(dataset.path / "shards", dataset.path / "elsewhere")
    again = Dataset(dataset.path)
    assert again.n_blocks == dataset.manifest.totals.blocks > 5
    assert again.shard(again.n_blocks - 1) == again.manifest.shards[-1]
    with pytest.raises(DamagedData, match=r"00000-00000\.index is missing"):
        again.tokens(0)
    with pytest.raises(DamagedData, match=r"00000-00000\.tar is missing, and \d+ more of \d+ files are missing or of"):
        again.check_files()
    os.rename(dataset.path / "elsewhere", dataset.path / "shards")
    again.check_files()
    assert read(again, 0).tolist() == dataset.tokens(0).tolist()


def test_check_files_names_the_first_and_counts_the_others(dataset):
    first, second, third = (dataset.path / "shards" / shard.name for shard in dataset.manifest.shards[:3])
    size = second.stat().st_size
    second.write_bytes(b"x" * 17)
    with pytest.raises(DamagedData, match=f"{second.name} has 17 bytes, the manifest has {size}; restore it"):
        dataset.check_files()
    third.with_suffix(".index").unlink()
    with pytest.raises(DamagedData, match=f"{second.name} has 17 bytes, the manifest has {size}, and 1 more of"):
        dataset.check_files()
    first.unlink()
    first.mkdir()
    with pytest.raises(DamagedData, match=f"{first.name} is missing, and 2 more of"):
        dataset.check_files()
    first.rmdir()
    first.symlink_to("nowhere")
    with pytest.raises(DamagedData, match=f"{first.name} is missing, and 2 more of"):
        dataset.check_files()


def test_read_tokens_fills_what_it_is_given(dataset):
    whole = np.full(sum(map(dataset.n_tokens, range(dataset.n_blocks))) + 2, 7, dataset.dtype)
    ends = np.cumsum([dataset.n_tokens(block) for block in range(dataset.n_blocks)]) + 1
    for block, end in enumerate(ends.tolist()):
        dataset.read_tokens(block, whole[end - dataset.n_tokens(block) : end])
    assert whole[0] == whole[-1] == 7
    assert whole[1:-1].tolist() == [id for block in range(dataset.n_blocks) for id in dataset.tokens(block).tolist()]
    fresh = dataset.tokens(0)
    fresh[:] = 0
    assert dataset.tokens(0).any()


@pytest.mark.parametrize("form", ["short", "int16", "two dimensions", "gaps", "read-only"])
def test_read_tokens_refuses_other_arrays(dataset, form):
    out = dataset.tokens(0)
    arrays = {"short": out[:-1], "int16": out.astype(np.int16), "two dimensions": out.reshape(1, -1)}
    arrays |= {"gaps": np.repeat(out, 2)[::2], "read-only": np.frombuffer(out.tobytes(), out.dtype)}
    with pytest.raises(ValueError, match="out is"):
        dataset.read_tokens(0, arrays[form])


def test_every_read_is_checked(dataset):
    block = dataset.n_blocks - 1
    path, position = shard_path(dataset, block), int(dataset.table[block]["tokens_offset"]) + 5
    sound = read(dataset, block)
    flip(path, position)
    for _ in range(2):
        with pytest.raises(DamagedData) as caught:
            read(dataset, block)
        assert f"{path} is damaged: the tokens of block {dataset.key(block)} have checksum " in str(caught.value)
        assert f"instead of {int(dataset.table[block]['tokens_xxh3']):016x}" in str(caught.value)
    flip(path, position)
    assert read(dataset, block).tolist() == sound.tolist()
    path.unlink()
    with pytest.raises(DamagedData, match=f"{path.name} is missing"):
        read(dataset, block)


@pytest.mark.parametrize("most", [1 << 20, 700])
def test_one_read_a_block_and_more_where_reads_come_short(dataset, monkeypatch, most):
    expected, start = dataset.tokens(1), int(dataset.table[1]["tokens_offset"])
    calls, preadv = [], os.preadv

    def some(descriptor, buffers, offset):
        calls.append(offset)
        return preadv(descriptor, [buffers[0][:most]], offset)

    monkeypatch.setattr(os, "preadv", some)
    assert read(dataset, 1).tolist() == expected.tolist()
    assert calls == [*range(start, start + expected.nbytes, most)]


def test_many_threads(dataset):
    expected = [dataset.tokens(block).tolist() for block in range(dataset.n_blocks)]
    blocks = np.random.default_rng(1).integers(0, dataset.n_blocks, 2000).tolist()
    again = Dataset(dataset.path)
    with ThreadPoolExecutor(8) as pool:
        for block, tokens in zip(blocks, pool.map(lambda block: read(again, block), blocks), strict=True):
            assert tokens.tolist() == expected[block]


def test_an_index_is_checked_once(dataset):
    again = Dataset(dataset.path)
    lengths = [again.document_lengths(block).tolist() for block in range(again.n_blocks)]
    path = dataset.path / "shards" / dataset.manifest.shards[0].index_name
    flip(path, INDEX_HEADER.itemsize + BLOCK_RECORD.itemsize - 1)  # in a checksum that the lengths do not need
    assert [again.document_lengths(block).tolist() for block in range(again.n_blocks)] == lengths
    with pytest.raises(DamagedData, match=f"{path.name} is damaged"):
        Dataset(dataset.path).document_lengths(0)
    index = shard_path(again, 0).with_suffix(".index")
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(DamagedData, match=f"{index.name} has {index.stat().st_size} bytes, the manifest has"):
        again.document_lengths(0)


def test_an_index_that_failed_its_check_is_not_trusted(dataset):
    path = dataset.path / "shards" / dataset.manifest.shards[0].index_name
    flip(path, -1)
    for _ in range(2):
        for use in (dataset.document_lengths, dataset.n_tokens, dataset.tokens, lambda _: dataset.check_indexes()):
            with pytest.raises(DamagedData, match=f"{path.name} is damaged: its SHA-256 is .*, the manifest has "):
                use(0)
    assert dataset.tokens(dataset.n_blocks - 1).size, "of another shard"
    flip(path, -1)
    assert dataset.document_lengths(0).sum() == dataset.n_tokens(0)


def test_documents_are_found_with_one_index(dataset):
    counts = [len(dataset.document_lengths(block)) for block in range(dataset.n_blocks)]
    expected = [(block, place) for block, count in enumerate(counts) for place in range(count)]
    again = Dataset(dataset.path)
    assert [again.find_document(number) for number in range(len(expected))] == expected
    for number in (-1, len(expected)):
        with pytest.raises(IndexError):
            again.find_document(number)
    for block in (-1, dataset.n_blocks):
        with pytest.raises(IndexError):
            again.tokens(block)
    for shard in dataset.manifest.shards[1:]:
        (dataset.path / "shards" / shard.index_name).unlink()
    assert Dataset(dataset.path).find_document(3) == expected[3]


def test_thousands_of_shards(dataset, tmp_path):
    """They are links to one shard."""
    folder, first = tmp_path / "many", dataset.manifest.shards[0]
    (folder / "shards").mkdir(parents=True)
    shards = [dataclasses.replace(first, name=f"{task:05d}-00000.tar") for task in range(2000)]
    for shard in shards:
        os.link(dataset.path / "shards" / first.name, folder / "shards" / shard.name)
        os.link(dataset.path / "shards" / first.index_name, folder / "shards" / shard.index_name)
    Manifest.write(folder, dataset.manifest.tokenizer, shards, [])

    def took(action):
        start = time.process_time()
        action()
        return time.process_time() - start

    opened = []
    assert took(lambda: opened.append(Dataset(folder))) < 1.0
    (many,) = opened
    blocks = np.random.default_rng(0).integers(0, many.n_blocks, 1500).tolist()
    assert took(lambda: [many.document_lengths(block) for block in blocks[:64]]) < 1.0
    descriptors = len(os.listdir("/proc/self/fd"))
    for block in blocks:
        assert many.n_tokens(block) == many.document_lengths(block).sum()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    mapped = Path("/proc/self/maps").read_text()
    assert str(folder) not in mapped
    many.check_files()


def test_begins_word_is_what_the_tokenizer_says(tmp_path):
    dataset = wordpiece_set(tmp_path / "set", [[SHIP]], [])
    assert dataset.begins_word.dtype == bool
    assert [word for word, begins in zip(WORDS, dataset.begins_word, strict=True) if not begins] == ["##s", "##ed"]
    path = dataset.tokenizer_path / "tokenizer.json"
    loaded = Tokenizer.from_file(str(path))
    loaded.add_tokens(["added", "##special"])  # get ids after the gap that the manifest's vocabulary leaves
    info = dataclasses.replace(dataset.manifest.tokenizer, vocab_size=len(WORDS) + 5)
    begins = info.begins_word(loaded.to_str().encode())
    vocab = loaded.get_vocab(with_added_tokens=True)
    inside = {id for token, id in vocab.items() if token.startswith("##")}
    assert [id not in inside for id in range(info.vocab_size)] == begins.tolist()
    assert len(inside) == 3


def test_begins_word_is_not_always_known(tmp_path):
    assert wordpiece_set(tmp_path / "blocks-tell", [[SHIP]], [], prefix=None).begins_word is None
    assert make_dataset(tmp_path / "no-files", [[7]]).begins_word is None
    dataset = wordpiece_set(tmp_path / "set", [[SHIP]], [])
    path = dataset.tokenizer_path / "tokenizer.json"
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(DamagedData, match="is not the tokenizer"):
        _ = dataset.begins_word
    path.unlink()
    with pytest.raises(DamagedData, match="cannot be read"):
        dataset.check_tokenizer()


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"model": {"vocab": [["a", 1]]}, "added_tokens": []}', "[" * 100_000, "x", '{"model": null}']
)
def test_hostile_tokenizer_files_end_in_a_sentence(text):
    with pytest.raises(ValueError):
        tokenizer_info(1000).begins_word(text.encode())


def test_ids_of_a_tokenizer_beyond_its_vocabulary_are_left_out():
    text = '{"model": {"vocab": {"##a": -1, "##b": 3, "##c": 1000, "d": 4}}, "added_tokens": []}'
    assert np.flatnonzero(~tokenizer_info(1000).begins_word(text.encode())).tolist() == [3]


def test_swapped_and_moved_shards_change_no_content(dataset):
    """Shards are in the order of the manifest, not in the order of their names."""
    manifest = dataset.manifest
    expected = [dataset.tokens(block).tolist() for block in range(dataset.n_blocks)]
    Manifest.write(dataset.path, manifest.tokenizer, manifest.shards[::-1], [])
    again = Dataset(dataset.path)
    tokens = {again.key(block): again.tokens(block).tolist() for block in range(again.n_blocks)}
    assert tokens == {dataset.key(block): expected[block] for block in range(dataset.n_blocks)}
    assert again.manifest.fingerprint != manifest.fingerprint


def test_unreadable_files_are_named(dataset, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    def failing(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refused)
        with pytest.raises(UserError, match=r"00000-00000\.index cannot be read: Permission denied") as caught:
            dataset.tokens(0)
        assert not isinstance(caught.value, DamagedData)
    dataset.tokens(0)
    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(DamagedData, match=r"00000-00000\.tar cannot be read: Input/output error"):
        dataset.tokens(0)
