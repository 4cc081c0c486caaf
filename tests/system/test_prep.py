"""Commands `maskwright tokenizer` and `maskwright prep`, from text files to data sets and error messages."""

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from data_prep.format import Dataset
from data_prep.inspection import verify_data_set
from data_prep.jobs import PreparationSettings
from data_prep.tokenizer import copy_files, train_tokenizer
from tests.support.in_process import command, refused
from tests.support.prep import decoded, jsonl, prepare_files, texts, tree
from tests.support.runs import maskwright


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text" / "more").mkdir(parents=True)
    (folder / "text/a.jsonl").write_bytes(jsonl(texts(0, 300)))
    (folder / "text/b.jsonl.zst").write_bytes(zstandard.compress(jsonl(texts(1, 200))))
    (folder / "text/more/c.txt.gz").write_bytes(gzip.compress("\n\n".join(texts(2, 100)).encode(), mtime=0))
    train_tokenizer(texts(0, 300), "wordpiece", 120, folder / "tok")
    train_tokenizer(texts(0, 300), "bpe", 320, folder / "tok-bpe")
    return folder


def test_text_to_data_set(corpus, tmp_path):
    out = tmp_path / "set"
    run = ("prep", "run", "--input", corpus / "text", "--tokenizer", corpus / "tok", "--out", out)
    result = maskwright(*run, real=True)
    assert result.returncode == 0, result.stderr
    assert "600 documents" in result.stdout
    dataset = Dataset(out)
    assert decoded(out) == texts(0, 300) + texts(1, 200) + texts(2, 100)
    sources = [(source.name, source.documents) for source in dataset.manifest.sources]
    assert sources == [("a.jsonl", 300), ("b.jsonl.zst", 200), ("more/c.txt.gz", 100)]

    again = command(*run)
    assert again.code == 0
    assert "already finished" in again.out
    assert "sound" in command("prep", "verify", out).out
    assert f"{dataset.manifest.totals.tokens:,}" in command("prep", "info", out).out


@pytest.mark.parametrize("tokenizer", ["tok", "tok-bpe"])
def test_workers_and_places_do_not_change_the_bytes(corpus, tmp_path, tokenizer):
    names = ("a.jsonl", "b.jsonl.zst", "more/c.txt.gz")
    settings = PreparationSettings(block_tokens=500, shard_bytes=5000, valid_fraction=0.2)
    moved = tmp_path / "elsewhere"
    (moved / "more").mkdir(parents=True)
    for name in names:
        (moved / name).write_bytes((corpus / "text" / name).read_bytes())
    for workers, folder in ((1, corpus / "text"), (2, moved)):
        paths = [folder / name for name in names]
        prepared = prepare_files(paths, corpus / tokenizer, tmp_path / str(workers), workers, settings)
        assert prepared.new_tasks == 3
    assert tree(tmp_path / "1") == tree(tmp_path / "2")
    train_set, valid_set = Dataset(tmp_path / "1" / "train"), Dataset(tmp_path / "1" / "valid")
    assert train_set.manifest.totals.documents + valid_set.manifest.totals.documents == 600
    assert 80 < valid_set.manifest.totals.documents < 160
    assert len(train_set.manifest.shards) > 3
    for dataset in (train_set, valid_set):
        assert command("prep", "verify", dataset.path).code == 0
    for name in ("plan.json", "tasks/00000.json"):
        assert str(tmp_path) not in (tmp_path / "1" / "prep" / name).read_text()
    assert str(tmp_path) not in (tmp_path / "1/train/manifest.json").read_text()


def test_copies_of_a_document_fall_on_one_side(corpus, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(0, 100)))
    (tmp_path / "b.jsonl").write_bytes(jsonl(texts(0, 100)[::-1]))
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    prepared = prepare_files(paths, corpus / "tok", tmp_path / "out", 1, PreparationSettings(valid_fraction=0.3))
    for manifest in prepared.manifests.values():
        assert manifest.sources[0].documents == manifest.sources[1].documents > 0
    assert not {*decoded(tmp_path / "out/train")} & {*decoded(tmp_path / "out/valid")}


def test_a_document_that_spells_a_special_token_is_text(corpus, tmp_path):
    """Unless the special token is a word of the vocabulary: then the document is set aside."""
    copy_files(corpus / "tok", tmp_path / "tok")
    settings = json.loads((tmp_path / "tok/tokenizer.json").read_text())
    settings["pre_tokenizer"] = {"type": "WhitespaceSplit"}  # leaves [MASK] whole, and the vocabulary has it
    settings["normalizer"] = None
    (tmp_path / "tok/tokenizer.json").write_text(json.dumps(settings))
    (tmp_path / "a.jsonl").write_bytes(jsonl(["the others", "the [MASK] others", "never mind"]))
    prepared = prepare_files([tmp_path / "a.jsonl"], tmp_path / "tok", tmp_path / "out", 1, PreparationSettings())
    assert prepared.manifests[tmp_path / "out"].totals.documents == 3
    assert not (tmp_path / "out/quarantine.jsonl").exists()

    config = json.loads((tmp_path / "tok/tokenizer_config.json").read_text())
    (tmp_path / "tok/tokenizer_config.json").write_text(json.dumps(config | {"mask_token": "never"}))
    prepared = prepare_files([tmp_path / "a.jsonl"], tmp_path / "tok", tmp_path / "aside", 1, PreparationSettings())
    assert prepared.manifests[tmp_path / "aside"].totals.documents == 2
    line = json.loads((tmp_path / "aside/quarantine.jsonl").read_text())
    assert (line["line"], "spells a special token" in line["reason"]) == (3, True)
    assert list(verify_data_set(tmp_path / "aside")) == []


def test_bad_input_gets_one_sentence_and_leaves_nothing(corpus, tmp_path):
    """More of it is in test_user_mistakes.py."""
    source = corpus / "text/a.jsonl"
    run = ["prep", "run", "--tokenizer", corpus / "tok", "--out", tmp_path / "out", "--input"]
    assert "Change the options that leave them out" in refused(*run, source, "--filter", "characters=90000-")
    (tmp_path / "one.txt").write_text("only one")
    assert "takes no document" in refused(*run, tmp_path / "one.txt", "--valid-fraction", "0.001")
    assert not (tmp_path / "out" / "prep").exists()  # nothing half-written stands in the way
    assert command(*run, source).code == 0

    tokenizer = ["tokenizer", "train", "--vocab-size", 200, "--input", source, "--out"]
    (tmp_path / "t").mkdir()
    assert command(*tokenizer, tmp_path / "t").code == 0
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
