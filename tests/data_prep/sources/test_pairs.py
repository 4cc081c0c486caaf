"""Pairs for translation: two fields, or two files whose lines belong together, become one document with a [SEP].

Pairs of a wrong text and its correction become documents with targets.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import zstandard
from tokenizers import Tokenizer, models, pre_tokenizers

from data_prep.cleaning import Cleaning
from data_prep.common.errors import UserError
from data_prep.format import Dataset
from data_prep.inspection import document, summary, verify_data_set
from data_prep.jobs import PreparationSettings
from data_prep.sources import Options, find_inputs
from data_prep.storage import Cache
from data_prep.tokenizer import CorpusSample
from tests.support.datasets import documents_of
from tests.support.in_process import invoke
from tests.support.prep import prepare_files, rows_file
from tests.support.wordpiece_set import wordpiece_set

SOURCES = ["the ship", "the ships sail", "sail", "the"]
TARGETS = ["ship", "sailed the ships", "the sailed", "ships"]
SEP, IDS = 3, {"the": [5], "ship": [6], "ships": [6, 7], "sail": [8], "sailed": [8, 9]}
FIELDS = Options("from", target_field="to")
SETTINGS = PreparationSettings(reading=FIELDS)


def encoded(text: str) -> list[int]:
    return [id for word in text.split() for id in IDS[word]]


WANTED = [[*encoded(source), SEP, *encoded(target)] for source, target in zip(SOURCES, TARGETS, strict=True)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    return wordpiece_set(tmp_path_factory.mktemp("books") / "set", [[[5]]], []).path / "tokenizer"


def aligned(folder: Path, sources: list[str], targets: list[str], end: str = "") -> str:
    """An input of two files."""
    paths = []
    for name, lines in (("a", sources), ("b", targets)):
        data = "".join(f"{line}\n" for line in lines).encode()
        paths.append(folder / f"{name}.txt{end}")
        packed = {"": bytes, ".zst": zstandard.compress, ".gz": gzip.compress}
        paths[-1].write_bytes(packed[end](data))
    return f"pair:{paths[0]},{paths[1]}"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "", ".zst"])
def test_a_pair_is_one_document_with_a_separator(tmp_path, tokenizer, kind):
    if kind in ("jsonl", "parquet"):
        rows = [{"from": source, "to": target} for source, target in zip(SOURCES, TARGETS, strict=True)]
        value, settings = str(rows_file(tmp_path, rows, kind)), SETTINGS
    else:
        value, settings = aligned(tmp_path, SOURCES, TARGETS, kind), PreparationSettings()
    prepare_files([value], tokenizer, tmp_path / "out", settings=settings)
    assert documents_of(Dataset(tmp_path / "out")) == WANTED
    assert not Dataset(tmp_path / "out").has_targets
    assert list(verify_data_set(tmp_path / "out")) == []
    text_bytes = sum(map(len, [*SOURCES, *TARGETS]))
    assert [source.text_bytes for source in Dataset(tmp_path / "out").manifest.sources] == [text_bytes]
    assert prepare_files([value], tokenizer, tmp_path / "out", settings=settings).new_tasks == 0


def test_word_starts_of_pairs(tmp_path):
    """With a vocabulary that does not show words, [SEP] begins a word, and so does each target."""
    vocabulary = {word: id for id, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([*vocabulary][:5])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    value = aligned(tmp_path, ["ab c", "c"], ["bc", "a"])
    prepare_files([value], tmp_path / "tokenizer.json", tmp_path / "out")
    assert documents_of(Dataset(tmp_path / "out")) == [[5, 6, 7, 3, 6, 7], [7, 3, 5]]
    starts = Dataset(tmp_path / "out").word_starts(0)
    assert np.asarray(starts).tolist() == [True, False, True, True, True, False, True, True, True]


def test_pairs_that_are_left_out_are_counted_and_a_changed_target_is_noticed(tmp_path, tokenizer):
    """A pair without a target, and one that a row would cut; one that just fits stays."""
    sources, targets = ["the ship", "the", "", "the ships", "the"], ["the ship", "", "the", "the ships", "sailed ship"]
    value = aligned(tmp_path, sources, targets)
    settings = PreparationSettings(max_pair_tokens=5)
    prepared = prepare_files([value], tokenizer, tmp_path / "out", settings=settings)
    assert documents_of(Dataset(tmp_path / "out")) == [[5, 6, SEP, 5, 6], [5, SEP, 8, 9, 6]]
    assert prepared.manifests[tmp_path / "out"].left_out() == {"empty": 2, "long pair": 1}
    (tmp_path / "b.txt").write_text("sail\n" * 5)
    with pytest.raises(UserError, match="has changed or is not given now"):
        prepare_files([value], tokenizer, tmp_path / "out", settings=settings)


def test_both_texts_are_normalised_and_split_by_the_source(tmp_path, tokenizer):
    rows = [{"from": "ｓhip", "to": "ｓail"}, {"from": "the", "to": 7}]
    settings = PreparationSettings(reading=FIELDS, cleaning=Cleaning(normalize="nfkc"))
    prepared = prepare_files([rows_file(tmp_path, rows, "jsonl")], tokenizer, tmp_path / "out", settings=settings)
    assert documents_of(Dataset(tmp_path / "out")) == [[6, SEP, 8]]
    assert prepared.manifests[tmp_path / "out"].left_out() == {"unreadable": 1}
    assert "field 'to' is not a string" in (tmp_path / "out" / "quarantine.jsonl").read_text()


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("end", [".gz", ".zst"])
def test_a_truncated_side_is_named(tmp_path, tokenizer, end, side):
    """Its lines are fewer, but the reason is another one."""
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice([*IDS], 20)) for _ in range(2000)]
    value = aligned(tmp_path, lines, lines, end)
    path = tmp_path / f"{'ab'[side]}.txt{end}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    message = rf"^{path}: the file cannot be read further: .* truncated: .*Copy it again\. .*a.txt{end} has"
    with pytest.raises(UserError, match=message):
        prepare_files([value], tokenizer, tmp_path / "out")


@pytest.mark.parametrize("longer", [0, 1])
def test_files_with_different_numbers_of_lines_are_refused(tmp_path, tokenizer, longer):
    texts = [["the"] * 3, ["ship"] * 3]
    texts[longer].append("sail")
    value = aligned(tmp_path, *texts)
    message = rf"a.txt has {len(texts[0])} lines, and .*b.txt has {len(texts[1])}: line 4 is only in one"
    with pytest.raises(UserError, match=message):
        prepare_files([value], tokenizer, tmp_path / "out")


def test_unreadable_lines_of_either_file_are_listed(tmp_path, tokenizer):
    value = aligned(tmp_path, ["the", "ship", "sail", ""], ["the", "ship", "sail", "the"])
    for name, line in (("a", 0), ("b", 1), ("b", 3)):
        lines = (tmp_path / f"{name}.txt").read_bytes().split(b"\n")
        lines[line] = b"\xff"
        (tmp_path / f"{name}.txt").write_bytes(b"\n".join(lines))
    prepare_files([value], tokenizer, tmp_path / "out")
    assert documents_of(Dataset(tmp_path / "out")) == [[8, SEP, 8]]
    rows = [json.loads(line) for line in (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()]
    target = "target: invalid"
    assert [(row["line"], row["reason"][:15]) for row in rows] == [(1, "invalid UTF-8 a"), (2, target), (4, target)]


def test_inputs_that_are_no_pair_are_refused(tmp_path, tokenizer):
    value = aligned(tmp_path, ["the"], ["ship"])
    (tmp_path / "c.jsonl").write_text("{}\n")
    first = value.split(",")[0]
    for wrong in (first, f"{value},{tmp_path / 'a.txt'}", f"{first},{tmp_path / 'c.jsonl'}"):
        with pytest.raises(UserError, match="is not of the form pair:SOURCE,TARGET"):
            find_inputs([wrong])
    with pytest.raises(UserError, match=r"No input file at .*d\.txt"):
        find_inputs([f"pair:{tmp_path}/a.txt,{tmp_path}/d.txt"])
    with pytest.raises(UserError, match=r"has no fields.*leave out --target-field"):
        prepare_files([value], tokenizer, tmp_path / "out", settings=SETTINGS)
    with pytest.raises(UserError, match="leave out --wrong-field or --target-field"):
        Options("a", wrong_field="b", target_field="c")
    with pytest.raises(UserError, match="both the text field and the target field"):
        Options("text", target_field="text")


def test_a_tokenizer_learns_from_both_texts(tmp_path):
    value = aligned(tmp_path, ["the", "ship"], ["sail", ""])
    sample = CorpusSample(find_inputs([value]), Options(), 1000, Cache(tmp_path / "cache", 1000))
    assert [*sample] == ["the", "sail", "ship", ""]
    rows = rows_file(tmp_path, [{"from": "the", "to": "sail"}], "jsonl")
    sample = CorpusSample(find_inputs([rows]), FIELDS, 1000, Cache(tmp_path / "cache", 1000))
    assert [*sample] == ["the", "sail"]


# Corrections

RIGHT = ["the ships sail", "the ship", "ship the", "the ship sailed", "the ship sail"]
WRONG = ["the ship sail", "the ship", "ship sails the", "the ship the", ""]
CORRECTING = PreparationSettings(reading=Options("right", None, wrong_field="wrong"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_right_text_is_a_document_whose_tokens_to_repair_are_targets(tmp_path, tokenizer, kind):
    rows = [{"right": right, "wrong": wrong} for right, wrong in zip(RIGHT, WRONG, strict=True)]
    rows += [{"right": "the ship", "wrong": None}]
    out = tmp_path / "out"
    prepared = prepare_files([rows_file(tmp_path, rows, kind)], tokenizer, out, settings=CORRECTING)
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
