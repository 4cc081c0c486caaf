"""Decontamination: which n-grams count, and which evaluation files are read."""

import gzip
import random

import numpy as np
import pytest
import zstandard

from data_prep.cleaning import Grams
from data_prep.cleaning.contamination import evaluation_grams, evaluation_texts
from data_prep.common.errors import DamagedData, UserError
from tests.support.hostile_json import DEEPEST

WORDS = [f"word{index}" for index in range(30)]


def text(start: int, end: int) -> str:
    return " ".join(WORDS[start:end])


def grams_of(texts) -> Grams:
    return evaluation_grams(texts, 13)[0]


def test_thirteen_words_in_a_row_or_short_texts_as_a_whole():
    split = "before " + text(3, 15) + " after " + text(15, 20)
    documents = ["Before:\n" + text(7, 20).upper().replace(" ", " -- ") + " after", split, text(20, 30)]
    assert grams_of([text(0, 20)]).occur_in(documents).tolist() == [True, False, False]
    assert grams_of([text(0, 9)]).occur_in(["a " + text(0, 9) + " b", text(0, 8)]).tolist() == [True, False]
    grams, skipped = evaluation_grams([text(0, 7), text(0, 8), text(0, 12), text(0, 13), ""], 13)
    assert skipped == 2
    assert {n: len(hashes) for n, hashes in grams.by_words.items()} == {8: 1, 12: 1, 13: 1}
    assert not grams.occur_in([text(0, 7)])[0]
    assert grams.occur_in([text(0, 8)])[0]


def test_against_plain_python(monkeypatch):
    monkeypatch.setattr("data_prep.cleaning.word_hashes.PART_WORDS", 7)
    random.seed(0)
    sentences = [[random.choice("abc") for _ in range(random.randrange(14))] for _ in range(60)]
    documents = [[random.choice("abc") for _ in range(random.randrange(60))] for _ in range(300)]
    grams, skipped = evaluation_grams([" ".join(words) for words in sentences], n=9, min_words=6)
    known = {tuple(s[k : k + 9]) for s in sentences if len(s) >= 6 for k in range(max(1, len(s) - 8))}
    expected = [any(tuple(d[k : k + len(g)]) == g for g in known for k in range(len(d))) for d in documents]
    texts = [" ".join(words) for words in documents]
    assert skipped == sum(len(words) < 6 for words in sentences)
    assert 20 < sum(expected) < 280
    assert grams.occur_in(texts).tolist() == expected
    assert [bool(grams.occur_in([text])[0]) for text in texts] == expected
    assert grams.occur_in([]).tolist() == []
    assert grams_of([]).occur_in([text(0, 30)]).tolist() == [False]


def test_saved_and_loaded(tmp_path):
    for texts, words in (([text(0, 25), text(0, 9), text(5, 14)], [9, 13]), ([], [])):
        grams = grams_of(texts)
        (tmp_path / "grams.npy").write_bytes(grams.to_bytes())
        loaded = Grams.load(tmp_path / "grams.npy").by_words
        assert list(loaded) == words
        for n, hashes in grams.by_words.items():
            assert loaded[n].tolist() == hashes.tolist() == sorted(set(hashes.tolist()))


def test_damaged_files_of_ngrams(tmp_path):
    path = tmp_path / "grams.npy"
    good = grams_of([text(0, 25)]).to_bytes()
    for bad in (good[:-1], good[:20], b"", b"\x80\x04K\x01."):
        path.write_bytes(bad)
        with pytest.raises(DamagedData, match=r"grams\.npy"):
            Grams.load(path)
    for array in (np.array([{}]), np.zeros((3, 3), np.uint64), np.zeros((3, 2)), np.ones(3, np.uint64)):
        np.save(path, array, allow_pickle=True)
        with pytest.raises(DamagedData, match=r"grams\.npy"):
            Grams.load(path)
    np.save(path, np.array([[13, 1], [9, 1]], dtype=np.uint64))
    with pytest.raises(DamagedData):
        Grams.load(path)


FILES = {
    "a.jsonl": b'{"good": "one two", "n": 3, "options": ["x", {"deep": "y"}], "none": null}\n\n{"a": "b"}\n',
    "a.tsv": "\ufeffid\tsentence\nä 1\tthe cells\r\n".encode(),
    "a.txt": "\ufefffirst line\nsecond\tline\n".encode(),
}
EXPECTED = {
    "a.jsonl": ["one two", "x", "y", "b"],
    "a.tsv": ["id", "sentence", "ä 1", "the cells"],
    "a.txt": ["first line", "second\tline"],
}


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", FILES)
def test_evaluation_files(tmp_path, name, suffix):
    path = tmp_path / (name + suffix)
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[suffix]
    path.write_bytes(pack(FILES[name]))
    assert [text.strip() for text in evaluation_texts(path) if text.strip()] == EXPECTED[name]


def test_strings_of_evaluation_files_are_found_at_any_depth(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": ' + DEEPEST.replace("[]", '["inmost"]') + "}")
    assert list(evaluation_texts(tmp_path / "a.jsonl")) == ["inmost"]


@pytest.mark.parametrize("name, message", [("b.jsonl", "line 1 is not a JSON object"), ("b.csv", "unknown type")])
def test_bad_evaluation_files(tmp_path, name, message):
    (tmp_path / name).write_text("[1]")
    with pytest.raises(UserError, match=message):
        list(evaluation_texts(tmp_path / name))
