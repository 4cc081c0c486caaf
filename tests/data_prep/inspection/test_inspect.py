"""`prep info` and `prep show`: figures against plain counting, and the printed output."""

import dataclasses
import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.common.errors import DamagedData, UserError
from data_prep.format import Dataset, Manifest
from data_prep.inspection import document, summary
from data_prep.inspection.summarize import PERCENTILES, Lengths
from pretrain.data import Filling
from tests.support.datasets import make_dataset
from tests.support.in_process import invoke
from tests.support.wordpiece_set import SHIP, WORDS, source, wordpiece_set


@pytest.fixture
def books(tmp_path) -> Dataset:
    """Three tasks, the first two of one input; 9, 4 and 2 documents."""
    tasks = [[SHIP] * 5, [SHIP[:2]] * 4, [[5, 1, 6], [10, 8, 9, 9]]]
    sources = [
        source("a.jsonl", "sea", 0, 2, 9, 33, text_bytes=99, left_out={"empty": 2, "too short": 1}),
        source("b.jsonl", "land", 2, 1, 2, 7, left_out={"empty": 5}),
        source("c.jsonl", "land", 3, 1, 0, 0, left_out={"exact copy": 7}),
    ]
    return wordpiece_set(tmp_path / "set", tasks, sources)


def test_facts_of_the_whole_and_by_source(books):
    facts = summary(books, seq_lens=[5, 8])
    tokens = SHIP * 5 + SHIP[:2] * 4 + [5, 1, 6, 10, 8, 9, 9]
    counts = Counter(tokens)
    assert (facts["documents"], facts["tokens"], facts["inputs"]) == (11, len(tokens), 3)
    assert facts["words"] == len(tokens) - counts[7] - counts[9]
    assert facts["tokens_per_word"] == len(tokens) / facts["words"]
    assert facts["bytes_per_token"] == 99 / len(tokens)
    assert (facts["unknown"], facts["unknown_rate"]) == (1, 1 / len(tokens))
    assert facts["left_out"] == {"empty": 7, "exact copy": 7, "too short": 1}
    p = [count / len(tokens) for count in counts.values()]
    assert facts["unigram_entropy"] == pytest.approx(-sum(x * math.log(x) for x in p))
    top = [(row["id"], row["token"], row["count"]) for row in facts["most_frequent"]]
    assert top == sorted(((id, WORDS[id], n) for id, n in counts.items()), key=lambda row: (-row[2], row[0]))
    assert facts["most_frequent"][0]["share"] == counts[5] / len(tokens)
    assert facts["vocabulary_used"] == len(counts)
    assert json.loads(json.dumps(facts)) == facts
    sea, land = facts["sources"]
    assert [sea["name"], land["name"]] == ["sea", "land"]
    assert [(s["inputs"], s["documents"], s["tokens"]) for s in (sea, land)] == [(1, 9, 33), (2, 2, 7)]
    assert (sea["words"], land["words"]) == (23, 5)
    assert (sea["unknown"], land["unknown_rate"]) == (0, 1 / 7)
    assert (sea["bytes_per_token"], land["bytes_per_token"]) == (3, None)
    assert land["left_out"] == {"empty": 5, "exact copy": 7}


def test_unnamed_sources_are_not_told_apart_and_unclaimed_blocks_are_shown(books):
    manifest = books.manifest
    unnamed = [dataclasses.replace(source, source="") for source in manifest.sources]
    Manifest.write(books.path, manifest.tokenizer, manifest.shards, unnamed)
    assert summary(Dataset(books.path))["sources"] == []
    Manifest.write(books.path, manifest.tokenizer, manifest.shards, manifest.sources[1:])
    facts = summary(Dataset(books.path))
    assert [(s["name"], s["tokens"]) for s in facts["sources"]] == [("land", 7), (None, 33)]
    assert "(of no input)" in invoke("prep", "info", books.path).output
    gap = [dataclasses.replace(manifest.sources[0], tasks=1), *manifest.sources[1:]]
    Manifest.write(books.path, manifest.tokenizer, manifest.shards, gap)
    facts = summary(Dataset(books.path))
    assert [(s["name"], s["tokens"]) for s in facts["sources"]] == [("sea", 25), ("land", 7), (None, 8)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40) | st.integers(1, 3 << 20), min_size=1), st.integers(1, 50), st.integers(3, 600))
def test_lengths(values, cut, seq_len):
    lengths = Lengths()
    for part in (values[:cut], values[cut:]):
        lengths.add(np.array(part, dtype=np.uint32))
    facts, exact = lengths.summary(), np.array(values)
    assert [facts["mean"], facts["min"], facts["max"]] == [pytest.approx(exact.mean()), exact.min(), exact.max()]
    ranks = np.percentile(exact, PERCENTILES, method="inverted_cdf")
    assert [facts[f"p{percentile}"] for percentile in PERCENTILES] == ranks.tolist()
    bins = lengths.histogram()
    for bin in bins:
        inside = exact[(exact >= bin["from"]) & (exact <= bin["to"])]
        assert (bin["documents"], bin["tokens"]) == (len(inside), inside.sum())
        assert bin["to"] == 2 * bin["from"] - 1
    assert sum(bin["documents"] for bin in bins) == len(values)
    assert bins[0]["documents"]
    assert bins[-1]["documents"]
    assert lengths.documents_cut(seq_len) == (exact > seq_len - 2).sum()


def test_packed_fill(tmp_path):
    dataset = make_dataset(tmp_path / "set", [[7] * n for n in (6, 4, 2, 2)], block_tokens=3)
    assert Filling.of(dataset, 8).fill == (6 + 4 + 2 + 2 + 8) / 24  # 6+2 | 4+2 | 2+2, 2+2: three rows
    assert Filling.of(dataset, 6).fill == (4 + 2 + 4 + 2 + 2 + 10) / 30


def test_info_prints_tables_and_json(books):
    text = invoke("prep", "info", books.path, "--seq-len", 8).output
    for words in ("By source", "sea", "7 empty", "'the'", "not padding", "tokens a word", "not recorded"):
        assert words in text, text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 120
    facts = json.loads(invoke("prep", "info", books.path, "--json", "--seq-len", 8, "--seq-len", 5, "--top", 2).output)
    fill = {row["seq_len"]: row["packed"] for row in facts["fill"]}
    assert fill == {seq_len: Filling.of(books, seq_len).fill for seq_len in (5, 8)}
    assert len(facts["most_frequent"]) == 2


def test_info_without_tokenizer_files_and_with_foreign_ones(tmp_path, books):
    facts = summary(make_dataset(tmp_path / "bare", [[7, 8, 8]]))
    assert (facts["words"], facts["most_frequent"][0]["text"], facts["sources"]) == (None, None, [])
    invoke("prep", "info", tmp_path / "bare")
    (books.tokenizer_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DamagedData, match="is not the tokenizer"):
        summary(Dataset(books.path))
    with pytest.raises(DamagedData, match="is not the tokenizer"):
        document(Dataset(books.path), 0)


def test_ids_beyond_the_vocabulary_are_refused_before_counting(tmp_path):
    with pytest.raises(DamagedData, match="id 60000 is not in the vocabulary of 1000"):
        summary(make_dataset(tmp_path / "set", [[7, 60_000]]))


def test_every_document_can_be_shown(books, monkeypatch):
    expected = [SHIP] * 5 + [SHIP[:2]] * 4 + [[5, 1, 6], [10, 8, 9, 9]]
    read: list[int] = []
    tokens = Dataset.tokens
    monkeypatch.setattr(Dataset, "tokens", lambda self, block: read.append(block) or tokens(self, block))
    for number, ids in enumerate(expected):
        shown = document(books, number)
        assert shown.ids.tolist() == ids
        assert shown.tokens == [WORDS[id] for id in ids]
        assert shown.word_starts.tolist() == [id not in (7, 9) for id in ids]
    task = [0] * 5 + [1] * 4 + [2] * 2
    shown = [document(books, number) for number in range(11)]
    assert [f.id for f in shown] == [f"{t}/{task[:n].count(t)}" for n, t in enumerate(task)]
    assert [f.input for f in shown] == ["a.jsonl"] * 9 + ["b.jsonl"] * 2
    assert [f.shard for f in shown] == [f"0000{t}-00000.tar" for t in task]
    assert shown[0].text == "the ships sailed"
    assert shown[9].text == "the [UNK] ship"
    assert len(read) == 22  # one block for each document, no other
    for number in (-1, 11):
        with pytest.raises(UserError, match=f"no document {number}; it has 11, counted from 0"):
            document(books, number)


def test_only_a_document_that_is_shown_must_be_in_the_vocabulary(tmp_path):
    dataset = wordpiece_set(tmp_path / "set", [[[5, 6], [6, 999]]], [])
    assert document(dataset, 0).ids.tolist() == [5, 6]
    with pytest.raises(UserError, match="has id 999, which is not in the vocabulary; run `maskwright prep verify`"):
        document(dataset, 1)


def test_show_tells_words_that_blocks_tell(tmp_path):
    dataset = wordpiece_set(tmp_path / "set", [[SHIP, SHIP[1:]]], [], prefix=None)
    assert document(dataset, 1).word_starts.tolist() == [False, True, False, True]
    assert summary(dataset)["tokens_per_word"] == 9 / 5


def test_show_prints_text_or_json_without_control_characters(books):
    options = ([], ["--tokens"], ["--json"])
    text, tokens, printed = (invoke("prep", "show", books.path, 10, *words).output for words in options)
    for words in (r"\x1b[2J sailed", "document  10", "00002_000000000, document 1 of it", "b.jsonl (land)"):
        assert words in text, text
    assert "id        2/1" in text
    assert "tokens    4" in text
    assert "sail (8)  ##ed (9)  ##ed (9)\n" in tokens
    assert "\x1b" not in text + printed
    facts = json.loads(printed)
    assert (facts["ids"], facts["tokens"][1:]) == ([10, 8, 9, 9], ["sail", "##ed", "##ed"])
    assert (facts["source"], facts["id"], facts["targets"]) == ("land", "2/1", None)
    assert facts["word_starts"] == [True, True, False, False]
    with pytest.raises(UserError, match="no document 11"):
        invoke("prep", "show", books.path, 11)
