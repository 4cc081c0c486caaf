"""Targets in shards: write, read, verify and show them. The format of data sets without targets is unchanged."""

import json
from pathlib import Path

import numpy as np
import pytest

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from data_prep.format.shard_format import check_index, read_index
from data_prep.inspection import document, summary, verify_data_set
from data_prep.jobs import PreparationSettings
from data_prep.sources import Options
from tests.support.datasets import edit_manifest, make_dataset, random_dataset
from tests.support.in_process import invoke
from tests.support.prep import prepare_files, rows_file
from tests.support.wordpiece_set import wordpiece_set


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


# Through the preparation

RIGHT = ["the ships sail", "the ship", "ship the", "the ship sailed", "the ship sail"]
WRONG = ["the ship sail", "the ship", "ship sails the", "the ship the", ""]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    return wordpiece_set(tmp_path_factory.mktemp("books") / "set", [[[5]]], []).path / "tokenizer"


PAIRS = PreparationSettings(reading=Options("right", None, wrong_field="wrong"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_pairs_to_a_data_set(tmp_path, tokenizer, kind):
    rows = [{"right": right, "wrong": wrong} for right, wrong in zip(RIGHT, WRONG, strict=True)]
    rows += [{"right": "the ship", "wrong": None}]
    out = tmp_path / "out"
    prepared = prepare_files([rows_file(tmp_path, rows, kind)], tokenizer, out, settings=PAIRS)
    dataset = Dataset(out)
    assert prepared.manifests[out].left_out() == {"unchanged": 2, "unreadable": 1}
    assert dataset.manifest.totals.text_bytes == sum(len(RIGHT[number]) for number in (0, 3, 4))
    assert list(verify_data_set(out)) == []
    shown = [document(dataset, number) for number in range(dataset.manifest.totals.documents)]
    marked = [invoke("prep", "show", out, number).stdout.splitlines()[-1] for number in range(len(shown))]
    assert marked == ["the ⟦ships⟧ sail", "the ship ⟦sailed⟧", "⟦the ship sail⟧"]
    reason = json.loads((out / "quarantine.jsonl").read_text())["reason"]
    assert reason == ("field 'wrong' is null" if kind == "parquet" else "field 'wrong' is not a string, but null")
    assert "7 tokens to repair (63.64%)" in invoke("prep", "info", out).stdout
    first, tokens = (invoke("prep", "show", out, 0, *options).stdout for options in ([], ["--tokens"]))
    assert first.endswith("tokens    4\nwords     3\ntargets   2 tokens to repair\n\nthe ⟦ships⟧ sail\n")
    assert tokens.endswith("\nthe (5)\n⟦ship⟧ (6)  ⟦##s⟧ (7)\nsail (8)\n")
    assert summary(dataset)["targets"] == sum(int(document.targets.sum()) for document in shown) == 7
