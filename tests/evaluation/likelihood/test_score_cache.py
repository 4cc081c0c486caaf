"""Cache of sentence scores: a stopped evaluation resumes with the missing sentences."""

import errno
import json
import os

import pytest
from typer.testing import CliRunner

from data_prep.common.errors import UserError
from data_prep.common.files import AppendLog
from evaluation.likelihood.predictors import FinishedModel
from evaluation.likelihood.sentence_scores import ScoreCache, model_identity
from launchers.app import app
from tests.support import text_data
from tests.support.evaluated import save_model


@pytest.fixture
def asked(monkeypatch):
    """Number of tokens that models scored, and the number before Ctrl-C is pressed; 16 tokens are kept together."""
    state = {"tokens": 0, "most": 10**9}
    monkeypatch.setattr(ScoreCache, "tokens_at_once", 16)
    answer = FinishedModel.answers

    def call(self, stream):
        if state["tokens"] + len(stream.labels) > state["most"]:
            raise KeyboardInterrupt
        state["tokens"] += len(stream.labels)
        return answer(self, stream)

    monkeypatch.setattr(FinishedModel, "answers", call)
    return state


def evaluate(*words):
    return CliRunner().invoke(app, ["evaluate", *map(str, words)])


def test_a_stopped_evaluation_goes_on(corpus, asked, tmp_path):
    models = [save_model("bert", corpus["wordpiece"], tmp_path / f"bert-{seed}", seed) for seed in (0, 1)]
    texts = [text.split(".")[0] for text in text_data.sentences(30)]
    pairs, out, scores = tmp_path / "pairs.jsonl", tmp_path / "found.json", tmp_path / "found.json.scores"
    lines = [{"sentence_good": good, "sentence_bad": bad} for good, bad in zip(texts[::2], texts[1::2], strict=True)]
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = [*models, "--pairs", pairs, "--json"]
    assert evaluate(*words, tmp_path / "whole.json").exit_code == 0
    whole, asked["tokens"] = asked["tokens"], 0

    asked["most"] = 2 * whole // 3  # in the second model
    stopped = evaluate(*words, out)
    assert stopped.exit_code == 130
    assert scores.exists()
    assert not out.exists()
    with open(scores, "ab") as file:
        file.write(b'{"of": "original')  # as a kill may leave it
    asked["most"] = 10**9
    assert evaluate(*words, out).exit_code == 0
    assert whole <= asked["tokens"] < whole + 2 * max(len(text.split()) * 4 for text in texts) + 32, "nearly none twice"
    found, wanted = json.loads(out.read_text()), json.loads((tmp_path / "whole.json").read_text())
    assert found == wanted
    assert not scores.exists()


def test_scores_belong_to_weights_and_form(corpus, tmp_path):
    first, same, other = (save_model("bert", corpus["wordpiece"], tmp_path / f"bert-{n}", n % 2) for n in (0, 2, 1))
    assert model_identity(first) == model_identity(same) != model_identity(other)
    path = tmp_path / "scores"
    cache = ScoreCache(path, "original a")
    cache.add({"x": -1.1, "y": 0.1 + 0.2})
    cache.close()
    ScoreCache(path, "original b").add({"x": -2.0})
    assert ScoreCache(path, "original a").scores == {"x": -1.1, "y": 0.1 + 0.2}
    assert ScoreCache(path, "within-word a").scores == {}
    assert ScoreCache().scores == {}


@pytest.mark.parametrize(
    "content",
    ["{}\n", "not JSON\n", "[1]\n", "no newline", "{}", '{"of": 1', '{"of": "original a", "scores": {}}\nand more'],
)
def test_another_file_is_refused(content, tmp_path):
    (tmp_path / "scores").write_text(content)
    with pytest.raises(UserError, match="holds no scores of an evaluation; move it"):
        ScoreCache(tmp_path / "scores", "original a")
    assert (tmp_path / "scores").read_text() == content
    with pytest.raises(UserError, match="it is a folder, not a regular file"):
        ScoreCache(tmp_path, "original a")


@pytest.mark.parametrize("rest", ["", "{", '{"of": "', '{"of": "original a", "scores": {"x": -1'])
def test_what_a_kill_leaves_of_a_line_is_dropped(rest, tmp_path):
    path, line = tmp_path / "scores", '{"of": "original a", "scores": {"x": -1.5}}\n'
    path.write_text(line + rest)
    assert ScoreCache(path, "original a").scores == {"x": -1.5}
    assert path.read_text() == line


def test_a_full_disk_is_said_in_a_sentence(tmp_path, monkeypatch):
    def full(self, lines):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = ScoreCache(tmp_path / "scores", "original a")
    monkeypatch.setattr(AppendLog, "append", full)
    with pytest.raises(UserError, match=r"scores cannot be used to keep scores in \(No space left on device\)"):
        cache.add({"x": -1.0})
