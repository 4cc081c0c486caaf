"""Scores that are kept in a file: a stopped evaluation resumes with the missing sentences."""

import json
import os
import sqlite3

import pytest

from data_prep.common.errors import UserError
from evaluation.likelihood import sentence_scores
from evaluation.likelihood.predictors import FinishedModel
from evaluation.likelihood.score_file import ScoreFile
from pretrain.export import model_digest
from tests.support import text_data
from tests.support.evaluated import save_model
from tests.support.in_process import invoke


def test_a_stopped_evaluation_goes_on(corpus, tmp_path, monkeypatch):
    """It is stopped in the second model. Both the scores and what a kill leaves of a write are taken up."""
    monkeypatch.setattr(sentence_scores, "PART_TOKENS", 16)
    asked, most, answer = [0], [10**9], FinishedModel.answers

    def answers(self, stream):
        if asked[0] + len(stream.labels) > most[0]:
            raise KeyboardInterrupt
        asked[0] += len(stream.labels)
        return answer(self, stream)

    monkeypatch.setattr(FinishedModel, "answers", answers)
    models = [str(save_model("bert", corpus["wordpiece"], tmp_path / f"bert-{seed}", seed)) for seed in (0, 1)]
    texts = [text.split(".")[0] for text in text_data.sentences(30)]
    lines = [{"sentence_good": good, "sentence_bad": bad} for good, bad in zip(texts[::2], texts[1::2], strict=True)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def evaluate(name, code=0):
        words = ["--pairs", tmp_path / "pairs.jsonl", "--json", tmp_path / "new" / name]
        invoke("evaluate", *models, *words, code=code)

    evaluate("whole.json")
    whole, asked[0] = asked[0], 0
    most[0] = 2 * whole // 3
    evaluate("stopped.json", code=130)
    assert (tmp_path / "new" / "stopped.json.scores").exists()
    assert not (tmp_path / "new" / "stopped.json").exists()
    before, most[0] = asked[0], 10**9
    evaluate("stopped.json")
    assert before < asked[0] < whole + 64, "nearly none twice"
    assert (tmp_path / "new" / "stopped.json").read_bytes() == (tmp_path / "new" / "whole.json").read_bytes()
    assert not (tmp_path / "new" / "stopped.json.scores").exists()


def test_scores_belong_to_weights_and_form(corpus, tmp_path):
    first, same, other = (save_model("bert", corpus["wordpiece"], tmp_path / f"bert-{n}", n % 2) for n in (0, 2, 1))
    assert model_digest(first) == model_digest(same) != model_digest(other)
    (same / "tokenizer.json").write_text((same / "tokenizer.json").read_text() + " ")
    assert model_digest(first) != model_digest(same)
    kept = ScoreFile(tmp_path / "scores")
    kept.add("original a", {b"x": -1.1, b"y": 0.1 + 0.2})
    kept.add("original b", {b"x": -2.0})
    kept.close()
    assert ScoreFile(tmp_path / "scores").known("original a") == {b"x": -1.1, b"y": 0.1 + 0.2}
    assert ScoreFile(tmp_path / "scores").known("within-word a") == {}


def test_another_file_is_refused_and_kept(tmp_path):
    (tmp_path / "text").write_text("no database, but longer than a header " * 20)
    with pytest.raises(UserError, match=r"cannot keep the scores of an evaluation .* move it"):
        ScoreFile(tmp_path / "text")
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE scores (name TEXT)")
    with pytest.raises(UserError, match="cannot keep the scores"):
        ScoreFile(tmp_path / "other").known("a")
    kept = ScoreFile(tmp_path / "scores")
    kept.add("a", {b"x": "no number"})
    with pytest.raises(UserError, match="cannot keep the scores"):
        kept.known("a")
    kept.close()
    sqlite3.connect(tmp_path / "foreign").execute("CREATE TABLE mine (name TEXT)")
    with pytest.raises(UserError, match="it has a table mine"):
        ScoreFile(tmp_path / "foreign")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    with pytest.raises(UserError, match="is a symbolic link"):
        ScoreFile(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, kind in (("pipe", "a pipe"), ("folder", "a folder")):
        with pytest.raises(UserError, match=f"scores of an evaluation .it is {kind}, not a regular file.*move it"):
            ScoreFile(tmp_path / name)
