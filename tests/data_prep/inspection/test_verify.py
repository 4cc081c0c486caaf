"""`prep verify`: names all damage of a data set, with shard and block."""

import dataclasses
import os
import tracemalloc

import numpy as np
import pytest

from data_prep.common.errors import DamagedData, UserError
from data_prep.common.processes import ordered_map
from data_prep.format import Dataset, Manifest, data_set_problems
from data_prep.format.shard_format import index_name
from data_prep.inspection import verify_data_set
from tests.support.datasets import edit_manifest, flip, make_dataset, random_dataset, tokenizer_info
from tests.support.wordpiece_set import SHIP, source, wordpiece_set


@pytest.fixture
def dataset(tmp_path) -> Dataset:
    dataset = random_dataset(tmp_path / "set", 30)
    assert list(verify_data_set(dataset.path)) == []
    return dataset


@pytest.mark.parametrize("what", ["tokens", "ends", "ids", "words", "targets"])
def test_a_flipped_bit_is_named_and_never_used(tmp_path, what):
    rng = np.random.default_rng(0)
    documents = [rng.integers(5, 1000, size=n) for n in rng.integers(1, 300, size=30)]
    bits = [document % 3 == 0 for document in documents]
    dataset = make_dataset(tmp_path / "set", documents, 1000, 1000, 8000, bits, list(range(30)), bits)
    block = dataset.n_blocks - 1
    path = dataset.path / "shards" / dataset.shard(block).name
    flip(path, int(dataset.table[block][f"{what}_offset"]) + 3)
    again = Dataset(dataset.path)
    read = {"tokens": again.tokens, "ends": again.document_ends, "ids": again.ids}
    read |= {"words": again.word_starts, "targets": again.targets}
    with pytest.raises(DamagedData, match=rf"{path.name} is damaged: the {what} of block {dataset.key(block)}"):
        read.pop(what)(block)
    for other in read.values():
        other(block)
    problems = list(verify_data_set(dataset.path))
    assert problems[0].startswith(f"{path.name}: SHA-256")
    assert problems[1].startswith(f"{path.name} block {dataset.key(block)}: the {what} have checksum")
    assert len(problems) == 2


def test_missing_files_and_an_altered_index(dataset):
    names = [shard.name for shard in dataset.manifest.shards]
    (dataset.path / "shards" / names[1]).unlink()
    index = (dataset.path / "shards" / names[2]).with_suffix(".index")
    index.unlink()
    assert list(verify_data_set(dataset.path)) == [f"{names[1]}: missing", f"{index.name}: missing"]
    altered = (dataset.path / "shards" / names[0]).with_suffix(".index")
    flip(altered, 60)
    assert any(problem.startswith(f"{altered.name}: SHA-256") for problem in verify_data_set(dataset.path))


@pytest.mark.parametrize("id, message", [(0, "1 pad tokens"), (4, "1 mask tokens"), (1000, "id 1000 is not in the")])
def test_ids_that_do_not_belong(tmp_path, id, message):
    dataset = make_dataset(tmp_path / "set", [[7, 8, id, 9]])
    assert [p for p in verify_data_set(dataset.path) if message in p] == list(verify_data_set(dataset.path)) != []
    assert list(verify_data_set(make_dataset(tmp_path / "unk", [[7, 1]]).path)) == []


def test_word_starts_that_are_missing(tmp_path):
    bare = make_dataset(tmp_path / "bare", [[7, 8, 9]])
    edit_manifest(bare.path, tokenizer=dataclasses.asdict(tokenizer_info(1000, None)))
    assert any("no word starts" in p for p in verify_data_set(bare.path))


def test_stray_shard_and_tokenizer_files(dataset):
    (dataset.path / "shards" / "00009-00000.tar").touch()
    files = {"tokenizer.json": "0" * 64, "vocab.txt": "0" * 64}
    edit_manifest(dataset.path, tokenizer=dataclasses.asdict(dataset.manifest.tokenizer) | {"files": files})
    (dataset.path / "tokenizer").mkdir()
    (dataset.path / "tokenizer" / "tokenizer.json").write_text("{}")
    problems = list(verify_data_set(dataset.path))
    assert "00009-00000.tar: not in the manifest" in problems
    assert "tokenizer/vocab.txt: missing" in problems
    assert any(p.startswith("tokenizer/tokenizer.json: the file is not the one") for p in problems)


def test_specials_are_found_in_every_part_of_a_block(tmp_path):
    document = np.full((8 << 20) + 3, 7)
    document[[1, 1 << 20, -1]] = 0
    dataset = make_dataset(tmp_path / "set", [document])
    (problem,) = verify_data_set(dataset.path)
    assert problem == "00000-00000.tar block 00000_000000000: 3 pad tokens in the documents"
    tracemalloc.start()
    assert len(list(data_set_problems(dataset.path, dataset.manifest, 1, None))) == 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(document) // 2, "a mask of the whole block"
    assert "id 1500" in next(verify_data_set(make_dataset(tmp_path / "large", [[7, 8, 1500, 9, 8]]).path))


def test_two_blocks_of_one_key(tmp_path):
    first, second = (make_dataset(tmp_path / name, [[7, number]]) for number, name in enumerate(("one", "two"), 8))
    (shard,) = second.manifest.shards
    for name in (shard.name, index_name(shard.name)):
        (second.path / "shards" / name).rename(first.path / "shards" / name.replace("00000-", "00001-"))
    shards = [*first.manifest.shards, dataclasses.replace(shard, name="00001-00000.tar")]
    Manifest.write(first.path, tokenizer_info(1000), shards, [])
    assert list(verify_data_set(first.path)) == ["manifest.json: two blocks have the same key"]


def test_counts_of_inputs(tmp_path):
    right = [source("a", "", 0, 2, 3, 15), source("b", "", 2, 1, 1, 5), source("c", "", 3, 1, 0, 0)]
    dataset = wordpiece_set(tmp_path / "set", [[SHIP] * 2, [SHIP], [SHIP]], right)
    assert list(verify_data_set(dataset.path)) == []
    wrong = [dataclasses.replace(right[0], tokens=14, documents=4), right[2]]
    Manifest.write(dataset.path, dataset.manifest.tokenizer, dataset.manifest.shards, wrong)
    assert list(verify_data_set(dataset.path)) == [
        "manifest.json: 'a' has 4 documents, its blocks have 3",
        "manifest.json: 'a' has 14 tokens, its blocks have 15",
        "manifest.json: the inputs' tasks have 2 blocks, the shards 3",
    ]


def test_tokenizer_is_the_one_described(tmp_path):
    dataset = wordpiece_set(tmp_path / "set", [[SHIP]], [])
    info = dataset.manifest.tokenizer
    roles = {**info.special_ids, "mask": 3, "sep": 4}
    other = dataclasses.replace(info, vocab_size=12, special_ids=roles, sha256="1" * 64)
    Manifest.write(dataset.path, other, dataset.manifest.shards, [])
    (dataset.tokenizer_path / "vocab.txt").touch()
    (dataset.tokenizer_path / ".vocab.txt.host.1.tmp").touch()  # what an interrupted copy leaves
    assert list(verify_data_set(dataset.path)) == [
        "tokenizer/vocab.txt: not in the manifest",
        f"manifest.json: the tokenizer's sha256 is {other.sha256!r}, its files say {info.sha256!r}",
        "manifest.json: the tokenizer's vocab_size is 12, its files say 11",
        f"manifest.json: the tokenizer's special_ids is {roles!r}, its files say {info.special_ids!r}",
    ]


def test_workers_change_nothing_and_progress_is_told(dataset):
    for shard in dataset.manifest.shards[::2]:
        path = dataset.path / "shards" / shard.name
        flip(path, path.stat().st_size // 2)
    told: list[tuple[int, int]] = []
    problems = list(verify_data_set(dataset.path, 1, lambda done, total: told.append((done, total))))
    assert list(verify_data_set(dataset.path, 2)) == problems != []
    sizes = np.cumsum([shard.bytes for shard in dataset.manifest.shards]).tolist()
    assert told == [(done, sizes[-1]) for done in sizes]
    assert [line[:15] for line in problems] == sorted(line[:15] for line in problems)


def test_a_killed_worker_is_reported(dataset):
    with pytest.raises(UserError, match="worker process was killed"):
        list(ordered_map(os._exit, [1, 2, 3], 2))


def test_separators_that_are_not_between_two_texts_are_found(tmp_path):
    sep = make_dataset(tmp_path / "a", [[5]]).manifest.tokenizer.special_ids["sep"]
    pair, wrong = [7, sep, 7], [[sep, 7], [7, sep], [7, sep, sep, 7]]
    assert list(verify_data_set(make_dataset(tmp_path / "b", [pair, [7], pair]).path)) == []
    problems = list(verify_data_set(make_dataset(tmp_path / "c", [pair, *wrong, pair]).path))
    assert problems == ["00000-00000.tar block 00000_000000000: 3 sep tokens in the documents"]
