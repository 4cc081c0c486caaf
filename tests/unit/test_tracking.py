"""Addresses, secrets and the choice of what is sent, without an MLflow store."""

import fcntl
import json
import logging
from pathlib import Path

import pytest

from data_prep.errors import UserError
from pretrain.journal import Entry, Journal
from pretrain.tracking import (
    RECORD_NAME,
    Tracker,
    load_record,
    redact,
    resolve_target,
    sync,
)
from pretrain.tracking.points import SentSteps, lines, metric_name
from pretrain.tracking.target import alone


@pytest.fixture(autouse=True)
def _no_mlflow_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)


@pytest.mark.parametrize(
    "text, kept",
    [
        ("https://user:pa@ss@host:5000/x", "https://***@host:5000/x"),
        ("postgresql://u:pa/ss@host/db", "postgresql://***@host/db"),
        ("API request to http://u:p@h/api failed: bad", "API request to http://***@h/api failed: bad"),
        ("postgresql://host/db?user=u&password=p&sslmode=on", "postgresql://host/db?user=u&password=***&sslmode=on"),
        ("https://host/?api_key=k", "https://host/?api_key=***"),
        ("sqlite:////home/a@b/mlflow.db", "sqlite:////home/a@b/mlflow.db"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
    ],
)
def test_secrets_in_addresses_are_redacted(text: str, kept: str) -> None:
    assert redact(text) == kept
    assert redact(kept) == kept


def test_the_environment_wins_over_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_target("http://a", "demo") == ("http://a", "demo")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://b")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "other")
    assert resolve_target("http://a", "demo") == ("http://b", "other")


def test_a_relative_sqlite_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_target("sqlite:///mlflow.db", "x")[0] == f"sqlite:///{tmp_path}/mlflow.db"
    assert resolve_target("sqlite:///a/b.db?timeout=9", "x")[0] == f"sqlite:///{tmp_path}/a/b.db?timeout=9"
    assert resolve_target(f"sqlite:///{tmp_path}/c.db", "x")[0] == f"sqlite:///{tmp_path}/c.db"


def test_each_metric_of_a_step_is_new_once() -> None:
    sent = SentSteps()
    assert sent.take_new(Entry(5, 0.0, {"a": 1.0})) == {"a": 1.0}
    assert sent.take_new(Entry(5, 9.0, {"a": 2.0, "b": 3.0})) == {"b": 3.0}
    assert sent.take_new(Entry(4, 9.0, {"a": 4.0})) == {"a": 4.0}  # an earlier step that was skipped before
    assert sent.take_new(Entry(4, 9.0, {"a": 4.0})) == {}


def test_the_tail_stops_before_an_unfinished_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append(1, {"a": 1.0})
    whole = path.stat().st_size
    with open(path, "ab") as file:
        file.write(b'{"step": 2')
    assert [(end, entry.step) for end, entry in lines(path, 0, None)] == [(whole, 1)]
    assert list(lines(path, whole, None)) == []
    assert list(lines(tmp_path / "none.jsonl", 0, None)) == []


def test_a_password_is_never_written_and_sync_asks_for_it(tmp_path: Path) -> None:
    Tracker(tmp_path, "http://me:hunter2@127.0.0.1:1", "demo", "r", {}, {}, [])
    assert "hunter2" not in (tmp_path / RECORD_NAME).read_text()
    with pytest.raises(UserError, match="set MLFLOW_TRACKING_URI"):
        sync(tmp_path)


def test_a_password_stays_out_of_the_log_of_an_outage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="pretrain.tracking"):
        tracker = Tracker(tmp_path, "http://me:hunter2@127.0.0.1:1", "demo", "r", {}, {}, [])
        tracker.start()
        tracker.close(30, "FINISHED")
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2, messages  # the outage, once, and what to do
    assert "127.0.0.1" in messages[0]
    assert f"maskwright track sync {tmp_path}" in messages[1]
    assert "hunter2" not in caplog.text


def test_sync_names_what_is_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no mlflow_run\.json"):
        sync(tmp_path)
    (tmp_path / RECORD_NAME).write_text('{"uri": ')
    with pytest.raises(UserError, match=r"mlflow_run\.json is damaged"):
        sync(tmp_path)
    (tmp_path / RECORD_NAME).write_text('{"server": 1}')
    with pytest.raises(UserError, match=r"mlflow_run\.json is damaged"):
        sync(tmp_path)


def test_a_tracker_survives_a_damaged_record_and_a_folder_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / RECORD_NAME).write_text("{")
    Tracker(tmp_path, "sqlite:///x.db", "demo", "r", {}, {}, [])
    assert json.loads((tmp_path / RECORD_NAME).read_text())["run_id"] is None
    gone = Tracker(tmp_path / "gone", "http://127.0.0.1:1", "demo", "r", {}, {}, [tmp_path / "config.yaml"])
    gone.log_artifact(tmp_path / "model")
    gone.close(1, "FAILED")


def test_artifacts_wait_in_the_record_each_once(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path, "http://127.0.0.1:1", "demo", "r", {}, {}, [tmp_path / "config.yaml"])
    tracker.log_artifact(tmp_path / "exports" / "step-1")
    tracker.log_artifact(tmp_path / "config.yaml")
    tracker.log_artifact(Path("/elsewhere/model"))
    record = load_record(tmp_path)
    assert record is not None
    assert record.artifacts == ["exports/step-1", "config.yaml", "/elsewhere/model"]


def test_runs_that_begin_at_once_make_a_sqlite_file_s_tables_one_after_the_other(tmp_path: Path) -> None:
    with alone(tmp_path / "mlflow.db"), open(tmp_path / "mlflow.db.lock") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with alone(tmp_path / "mlflow.db"), alone(None), alone(tmp_path / "missing" / "mlflow.db"):
        pass
