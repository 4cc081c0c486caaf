"""Evaluations in MLflow: one run for each model below its training run, also after repeated sends."""

import errno
import json
import logging
import os
import sqlite3
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from data_prep.common.errors import UserError
from evaluation.likelihood import send_evaluation
from pretrain.tracking import RunRecord, Target
from pretrain.tracking.mlflow_runs import MlflowRun
from tests.support.evaluated import corpora, save_model
from tests.support.in_process import app
from tests.support.runs import write_config

SETTINGS = {"held_out": {"data": "data/valid", "rows": 9}, "pairs": {"file": "pairs.jsonl", "limit": None}}
BY = {"field:syntax": {"accuracy": 0.25, "interval": None}}
PAIRS = {"score": "original", "accuracy": 0.625, "interval": [0.5, 0.75], "by": BY}
RESULTS = {"held_out": {"loss": 3.5, "rows": 9}, "pairs": PAIRS}


@pytest.fixture
def uri(tmp_path) -> str:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    write_config(tmp_path / "config.yaml", {"track": {"uri": uri}})  # for its empty database
    return uri


def rows(folder: Path, query: str, *values: str) -> list[tuple[object, ...]]:
    return sqlite3.connect(folder / "mlflow.db").execute(query, values).fetchall()


def test_each_model_has_a_run_with_its_figures_below_the_one_that_trained_it(tmp_path, uri):
    books = Target(uri, "books")
    trained = RunRecord(uri, "books", "token", {}, {})
    parent = MlflowRun.open(books, trained).id
    (tmp_path / "mlflow_run.json").write_text(json.dumps(asdict(trained)))
    found = {"settings": SETTINGS, "models": {str(tmp_path): RESULTS, "unigram": {"held_out": {"loss": 6.5}}}}
    send_evaluation(found, books)
    send_evaluation(found, books)

    runs = dict(rows(tmp_path, "select name, run_uuid from runs where status = 'FINISHED'"))
    assert sorted(runs) == [f"evaluate {tmp_path}", "evaluate unigram"]
    assert len(rows(tmp_path, "select * from runs")) == 3
    run = runs[f"evaluate {tmp_path}"]
    assert rows(tmp_path, "select run_uuid, value from tags where key = 'mlflow.parentRunId'") == [(run, parent)]
    of_pairs = {"accuracy": 0.625, "lower": 0.5, "upper": 0.75, "by/field:syntax/accuracy": 0.25}
    metrics = {"held_out/loss": 3.5, "held_out/rows": 9} | {f"pairs/{name}": of_pairs[name] for name in of_pairs}
    assert dict(rows(tmp_path, "select key, value from metrics where run_uuid = ?", run)) == metrics
    assert len(rows(tmp_path, "select * from metrics")) == 7
    settings = {"held_out.data": "data/valid", "held_out.rows": "9", "pairs.file": "pairs.jsonl", "pairs.limit": "None"}
    parameters = dict(rows(tmp_path, "select key, value from params where run_uuid = ?", run))
    assert parameters == {"model": str(tmp_path)} | settings

    found["models"]["unigram"]["held_out"]["loss"] = 6.25
    send_evaluation(found, books)
    assert len(rows(tmp_path, "select * from runs")) == 4, "other figures are another evaluation"


def test_what_was_begun_is_finished(tmp_path, uri, monkeypatch, caplog):
    """A death before the figures leaves a run without them, which the same command completes."""
    found = {"settings": SETTINGS, "models": {"a": RESULTS}}

    def dies(*_):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(MlflowRun, "log_points", dies)
        send_evaluation(found, Target(uri, "books"))
    assert "did not take the results (no space left)" in caplog.text
    assert rows(tmp_path, "select status from runs") == [("RUNNING",)]
    send_evaluation(found, Target(uri, "books"))
    assert rows(tmp_path, "select status from runs") == [("FINISHED",)]
    assert len(rows(tmp_path, "select * from metrics")) == 6


def test_the_command_sends_where_it_is_told_to(tmp_path, uri, monkeypatch, caplog):
    corpus = corpora(tmp_path)["wordpiece"]
    model = save_model("bert", corpus, tmp_path / "bert")
    data = str(corpus / "data/valid")
    monkeypatch.chdir(tmp_path)

    def evaluated(*options: str) -> int:
        words = ["evaluate", str(model), "--data", data, "--rows", "4", *options]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.exception
        assert "masked accuracy" in done.stdout
        return len(rows(tmp_path, "select * from runs"))

    assert evaluated() == 0
    assert evaluated("--uri", uri) == 1
    assert evaluated("--uri", uri) == 1
    assert evaluated("--experiment", "other") == 2  # to the usual file
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert evaluated("--experiment", "third") == 3
    assert evaluated("--uri", "none", "--experiment", "fourth") == 3
    with caplog.at_level(logging.WARNING):
        assert evaluated("--uri", "http://127.0.0.1:9") == 3
    assert "did not take the results" in caplog.text
    refused = CliRunner().invoke(app, ["evaluate", str(model), "--data", data, "--uri", "http://me:secret@host"])
    assert "Do not write a password" in str(refused.exception)

    def broken(*_):  # as of `maskwright evaluate ... | head`
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    out = tmp_path / "new" / "found.json"
    words = ["evaluate", str(model), "--data", data, "--rows", "4", "--experiment", "fifth", "--json", str(out)]
    monkeypatch.setattr("launchers.commands.evaluate.print_results", broken)
    assert CliRunner().invoke(app, words).exit_code
    assert len(rows(tmp_path, "select * from runs")) == 4, "results are sent before they are printed"
    assert list(json.loads(out.read_text())["models"]) == [str(model)]
    monkeypatch.setattr("launchers.display.json_output.write_json", broken)
    with pytest.raises(UserError, match=r"Cannot write to .*found\.json: broken pipe"):
        raise CliRunner().invoke(app, words).exception
