"""Weight lists: counted and looked up as by hand, refused if they are not sound, and used by runs that need them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from data_prep.common.errors import UserError
from data_prep.format import Dataset, WeightList
from pretrain.config import MaskingConfig
from pretrain.data import Sources
from pretrain.masking import Vocabulary, cached_weights
from pretrain.masking.unit_weights import UnitWeights
from pretrain.reporting import replay
from tests.support import wordpiece_set as wordpiece
from tests.support.configs import least_config
from tests.support.datasets import make_dataset
from tests.support.in_process import app
from tests.support.run_folder import make_run


def run(*arguments) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def ships(tmp_path) -> Dataset:
    """`the ships sailed the ship`, four times, with a tokenizer."""
    return wordpiece.wordpiece_set(tmp_path / "ships", [[[*wordpiece.SHIP, 5, 6]] * 4], [])


def made(ships: Dataset, tmp_path: Path, *options) -> tuple[list[float], str]:
    """The weights of a list that the command writes, and what the command prints."""
    path = tmp_path / "weights.json"
    path.unlink(missing_ok=True)
    said = run("prep", "weights", ships.path, "--out", path, *options)
    found = WeightList.read(path)
    assert found.tokenizer_sha256 == ships.manifest.tokenizer.sha256
    return found.weights, said


def test_rarer_tokens_have_higher_weights(ships, tmp_path):
    weights, said = made(ships, tmp_path, "--frequency", 0.5)
    assert weights == pytest.approx([count**-0.5 for count in (1, 1, 1, 1, 1, 8, 8, 4, 4, 4, 1)])
    assert "11 tokens, 0 with weight 0, others up to 1" in said


def test_words_have_the_mean_of_their_weights(ships, tmp_path):
    """`Ship` is the same word to this tokenizer; `ships`, `s` and `boat` are not one token that begins a word."""
    file = tmp_path / "words.txt"
    file.write_text("\ufeffsail\t2\n\nship\t3\nShip\t4\nships\ns\nboat\t7\nthe\n")
    weights, said = made(ships, tmp_path, "--words", file, "--other", 0.25)
    assert weights == [0.25] * 5 + [1, 3.5, 0.25, 2, 0.25, 0.25]
    assert "left out: 3 lines whose word is not one token" in said
    weights, said = made(ships, tmp_path, "--words", file)
    assert weights == [0.0] * 5 + [1, 3.5, 0, 2, 0, 0]
    assert "8 with weight 0, others up to 3.5" in said


STOPS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "ship", "##s", ".", "!", "-", "sail", "etc.", '."']


@pytest.fixture
def signs(tmp_path, monkeypatch) -> Dataset:
    monkeypatch.setattr(wordpiece, "WORDS", STOPS)
    documents = [[5, 6, 7, 10, 5, 11, 8], [5, 6, 7, 7, 7, 7, 9, 12, 13]] * 30
    return wordpiece.wordpiece_set(tmp_path / "set", [documents], [])


def test_content_words_are_neither_frequent_nor_signs(signs, tmp_path):
    """`##s` is most frequent, but begins no word."""
    weights, _ = made(signs, tmp_path, "--content", 2)
    assert [id for id, weight in enumerate(weights) if not weight] == [5, 6, 8, 9, 10, 13]
    assert {*weights} == {0.0, 1.0}
    weights, _ = made(signs, tmp_path, "--content", 100)
    assert [id for id, weight in enumerate(weights) if not weight] == [5, 6, 8, 9, 10, 11, 12, 13]


def test_what_cannot_be_made_is_refused(ships, tmp_path):
    out, words = tmp_path / "w.json", tmp_path / "words.txt"
    words.write_text("ship\tmuch\n")
    base = ("prep", "weights", ships.path, "--out", out)
    for options, wanted in (
        ((), "Give one of --frequency, --content and --words; --other is"),
        (("--content", 5, "--other", 1), "--other is for --words"),
        (("--content", 5, "--frequency", 1), "Give one of"),
        (("--words", words), "has a weight that is not a number"),
        (("--words", tmp_path / "none"), "none"),
    ):
        with pytest.raises(UserError, match=wanted):
            run(*base, *options)
    for weight in ("-1", "1e9", "nan", "1e-9"):
        words.write_text(f"ship\t{weight}\n")
        with pytest.raises(UserError, match="a weight is neither 0 nor from 1e-6 to 1e6"):
            run(*base, "--words", words)
    assert not out.exists()
    bare = make_dataset(tmp_path / "bare", [[5, 6]])
    with pytest.raises(UserError, match="has no tokenizer files"):
        run("prep", "weights", bare.path, "--out", out, "--frequency", 1)
    run(*base, "--frequency", 1)
    with pytest.raises(UserError, match="exists"):
        run(*base, "--frequency", 1)


def written(path: Path, weight: float, sha256: str, size: int = 1000) -> Path:
    """Token 6 has a weight, and 7 has none."""
    cached_weights.cache_clear()
    WeightList(sha256, [{6: weight, 7: 0.0}.get(id, 1.0) for id in range(size)]).write(path)
    return path


def test_another_tokenizer_and_bad_files_are_refused(tmp_path):
    vocabulary = Vocabulary(20, 0, 2, 3, 4, frozenset(range(5)), "t")
    path = written(tmp_path / "list", 2.0, "t", 20)
    masking = MaskingConfig.model_validate({"selection": {"weights": path}})
    assert UnitWeights.of(masking, vocabulary).of_ids.tolist() == [0] * 5 + [1, 2, 0] + [1] * 12
    for other in (replace(vocabulary, tokenizer_sha256="u"), replace(vocabulary, size=21)):
        with pytest.raises(UserError, match=r"another tokenizer than the data set.*maskwright prep weights"):
            UnitWeights.of(masking, other)
    with pytest.raises(UserError, match="no such weight list; make one with `maskwright prep weights`"):
        WeightList.read(tmp_path / "none")
    sound = json.loads(path.read_text())
    changes = {"weights": [1.0, -1.0]}, {"weights": ["a", 1.0]}, {"more": 3}
    for text in (*(json.dumps(sound | change) for change in changes), json.dumps(sound)[:-9]):
        path.write_text(text)
        with pytest.raises(UserError, match="is not a sound weight list"):
            WeightList.read(path)


def test_a_run_needs_its_list_to_be_replayed(tmp_path):
    data = tmp_path / "data"
    rng = np.random.default_rng(0)
    documents, words = [rng.integers(5, 9, size=40).tolist() for _ in range(60)], [np.ones(40, dtype=bool)] * 60
    sha256 = make_dataset(data / "train", documents, word_starts=words).manifest.tokenizer.sha256
    path = written(tmp_path / "list", 5.0, sha256)
    later = {"name": "b", "steps": 22, "masking": {"selection": {"weights": str(path)}}}
    make_run(data, tmp_path / "run", data__valid=None, phases=[{"name": "a", "steps": 2}, later])
    replay(tmp_path / "run", 3)  # raises unless the batch has the checksum in the journal
    written(path, 4.0, sha256)
    with pytest.raises(UserError, match=r"phases.b.masking.selection.weights \(content\) was \w+ and is \w+"):
        replay(tmp_path / "run", 3)
    path.unlink()
    cached_weights.cache_clear()
    with pytest.raises(UserError, match="no such weight list"):
        replay(tmp_path / "run", 3)


def test_marks_of_the_data_are_read_with_word_starts(tmp_path):
    """Both flags of a token reach the masks, and data without marks are refused."""
    documents, marks = [[5, 6, 7, 8, 9, 10]] * 30, [np.array([0, 0, 1, 1, 0, 0], bool)] * 30
    starts = [np.array([1, 0, 1, 0, 1, 1], bool)] * 30
    make_dataset(tmp_path / "set" / "train", documents, 20, word_starts=starts, targets=marks)
    masking = {"masking__selection": {"unmarked": 0}, "masking__strategy": "whole_word", "masking__rate": 0.3}
    make_run(tmp_path / "set", tmp_path / "run", data__valid=None, **masking)
    rows = replay(tmp_path / "run", 1).rows
    predicted = np.take_along_axis(rows.original, np.maximum(rows.columns, 0), axis=1)[rows.columns >= 0]
    assert set(predicted.tolist()) == {7, 8}
    assert (predicted == 7).sum() == (predicted == 8).sum() > 0
    path = make_dataset(tmp_path / "plain", documents).path
    plain = least_config(data={"train": str(path)}, masking={"selection": {"unmarked": 0.5}})
    with pytest.raises(UserError, match=r"no targets, which objective repair and masking.selection.unmarked need"):
        Sources.open(plain).check(plain)
