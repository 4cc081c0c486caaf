"""Targets in shards: write, read, verify and show them. The format of data sets without targets is unchanged."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from data_prep.common.errors import UserError
from data_prep.format import Dataset, ShardWriter
from data_prep.format.shard_format import check_index, read_index
from data_prep.inspection import document, summary, verify_data_set
from data_prep.jobs import PreparationSettings
from data_prep.sources import Options
from launchers.app import app
from tests.support.datasets import make_dataset, random_dataset
from tests.support.prep import prepare_files
from tests.support.wordpiece_set import wordpiece_set


def targets_of(documents) -> list[np.ndarray]:
    return [np.array(document) % 3 == 0 for document in documents]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return random_dataset(tmp_path / "set", targets=True)


def test_targets_are_part_of_the_content(tmp_path):
    documents = [[5, 6, 7], [8, 9]]
    sets = {
        name: make_dataset(tmp_path / name, documents, targets=targets)
        for name, targets in (
            ("none", None),
            ("some", targets_of(documents)),
            ("all", [np.ones(3, bool), np.ones(2, bool)]),
        )
    }
    assert len({dataset.manifest.fingerprint for dataset in sets.values()}) == 3
    assert not sets["none"].has_targets
    assert sets["none"].targets(0) is None
    assert sets["none"].manifest.format_version == 1


def test_an_index_with_a_block_without_targets_is_refused(dataset):
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
    targets = targets_of([[5, 6]]) if version == 2 else None
    path = make_dataset(tmp_path / "set", [[5, 6]], targets=targets).path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "format_version": other}))
    with pytest.raises(UserError, match=rf"00000-00000.index has \d+ bytes, by format version {other} \d+"):
        Dataset(path.parent)


@pytest.mark.parametrize("made_for", [False, True])
def test_targets_come_with_all_documents_or_none(tmp_path, made_for):
    bits = None if made_for else np.array([True])
    with (
        pytest.raises(ValueError, match="targets come with every document"),
        ShardWriter(tmp_path, 0, np.dtype("<u2"), targets=made_for) as writer,
    ):
        writer.add(np.array([7]), np.array([1]), targets=bits)
    assert not list(tmp_path.iterdir())


# Through the preparation

RIGHT = ["the ships sail", "the ship", "ship the", "the ship sailed", "the ship sail"]
WRONG = ["the ship sail", "the ship", "ship sails the", "the ship the", ""]
KINDS = ["jsonl", "parquet"]


def pairs(path: Path, kind: str, rows: list[dict]) -> Path:
    path = path.with_suffix(f".{kind}")
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    return wordpiece_set(tmp_path_factory.mktemp("books") / "set", [[[5]]], []).path / "tokenizer"


PAIRS = PreparationSettings(reading=Options("right", None, wrong_field="wrong"))


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_to_a_data_set(tmp_path, tokenizer, kind):
    rows = [{"right": right, "wrong": wrong} for right, wrong in zip(RIGHT, WRONG, strict=True)]
    rows += [{"right": "the ship", "wrong": None}]
    out = tmp_path / "out"
    prepared = prepare_files([pairs(tmp_path / "pairs", kind, rows)], tokenizer, out, settings=PAIRS)
    dataset = Dataset(out)
    assert prepared.manifests[out].left_out() == {"unchanged": 2, "unreadable": 1}
    assert list(verify_data_set(out)) == []
    shown = [document(dataset, number) for number in range(dataset.manifest.totals.documents)]
    run = lambda *words: CliRunner().invoke(app, ["prep", *words]).stdout  # noqa: E731
    marked = [run("show", str(out), str(number)).splitlines()[-1] for number in range(len(shown))]
    assert marked == ["the ⟦ships⟧ sail", "the ship ⟦sailed⟧", "⟦the ship sail⟧"]
    reason = json.loads((out / "quarantine.jsonl").read_text())["reason"]
    assert reason == ("field 'wrong' is null" if kind == "parquet" else "field 'wrong' is not a string, but null")
    facts = summary(dataset)
    assert "7 tokens to repair (63.64%)" in run("info", str(out))
    assert run("show", str(out), "0").endswith(
        "tokens    4\nwords     3\ntargets   2 tokens to repair\n\nthe ⟦ships⟧ sail\n"
    )
    assert run("show", str(out), "0", "--tokens").endswith("\nthe (5)\n⟦ship⟧ (6)  ⟦##s⟧ (7)\nsail (8)\n")
    assert facts["targets"] == sum(int(one.targets.sum()) for one in shown) == 7
