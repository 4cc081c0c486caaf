"""Tracking with real MLflow stores and a real server: nothing lost, nothing twice, no waiting."""

import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from data_prep.common.errors import UserError
from pretrain.config import TrackConfig
from pretrain.planning import check_tracking
from pretrain.run import Journal
from pretrain.tracking import RunRecord, Tracker, sync
from pretrain.tracking.journal_forwarder import Sender
from tests.support import runs
from tests.support.empty_store import copy_empty_store
from tests.support.forked import ROOT, Forked
from tests.support.mlflow_server import Proxy, Server
from tests.support.tracked import (
    append,
    expected,
    record_of,
    run_id,
    runs_of,
    scalar,
    start,
    status,
    stored,
    wait_for_step,
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return copy_empty_store(tmp_path / "mlflow.db")


def test_a_run_arrives_whole_with_config_parameters_and_tags(run_dir: Path, database: Path) -> None:
    (run_dir / "report.html").write_bytes(b"\x89PNG")
    tracker = start(run_dir, f"sqlite:///{database}")
    append(run_dir, range(1, 101))
    tracker.log_artifact(run_dir / "report.html")
    tracker.log_artifact(run_dir / "not-there")
    tracker.close(60, "FINISHED")
    assert stored(database, run_dir) == expected(run_dir)
    assert scalar(database, "select status from runs") == "FINISHED"
    assert scalar(database, "select name from runs") == "first"
    assert scalar(database, "select value from params where key = 'train.steps'") == "100"
    assert scalar(database, "select value from tags where key = 'dataset.fingerprint'") == "abc"
    files = [str(path) for path in database.parent.glob("mlflow-artifacts/**/*")]
    assert any(file.endswith("artifacts/config.yaml") for file in files), files
    assert any(file.endswith("artifacts/report.html") for file in files), files
    assert (record_of(run_dir).step, record_of(run_dir).artifacts) == (100, [])
    assert sync(run_dir, f"sqlite:///{database}") == 0


def test_a_resumed_run_continues_its_mlflow_run_and_repeats_nothing(run_dir: Path, database: Path) -> None:
    first = start(run_dir, f"sqlite:///{database}")
    append(run_dir, range(1, 51))
    first.close(60, "KILLED")
    MlflowClient(f"sqlite:///{database}").set_tag(run_id(run_dir), "mlflow.note.content", "what a user wrote")
    resumed = start(run_dir, f"sqlite:///{database}", {"train.steps": "200", "zero.stage": "2"})
    append(run_dir, range(31, 81))  # from a checkpoint at step 30
    runs.wait_for(lambda: scalar(database, "select status from runs") == "RUNNING")
    resumed.close(60, "FINISHED")
    assert scalar(database, "select count(*) from runs") == 1
    assert scalar(database, "select status from runs") == "FINISHED"
    assert stored(database, run_dir) == expected(run_dir)
    assert scalar(database, "select value from params where key = 'zero.stage'") == "2"
    assert scalar(database, "select value from tags where key = 'resumed/train.steps'") == "200"
    assert scalar(database, "select value from tags where key = 'mlflow.note.content'") == "what a user wrote"


def test_a_process_that_dies_between_sending_and_recording_doubles_nothing(
    run_dir: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(run_dir / "journal.jsonl")
    for step in range(1, 1200):
        journal.append(step, {"loss": 1 / step, "nan": math.nan, "up": math.inf, "down": -math.inf})
    journal.close()
    Tracker(run_dir, RunRecord(f"sqlite:///{database}", "demo", "first", {}, {}))
    update = Sender.update

    def die_when_recording_progress(sender: Sender, **changes: object) -> None:
        if changes.get("offset"):
            raise OSError("killed here")
        update(sender, **changes)

    with monkeypatch.context() as patch:
        patch.setattr(Sender, "update", die_when_recording_progress)
        with pytest.raises(UserError, match="killed here"):
            sync(run_dir, f"sqlite:///{database}")
    assert 0 < len(stored(database, run_dir)) < 4 * 1199  # one batch was taken and not recorded
    assert record_of(run_dir).offset == 0
    assert sync(run_dir, f"sqlite:///{database}") == 4 * 1199
    rows = stored(database, run_dir)
    assert len(rows) == len({(name, step) for name, step, _ in rows}) == 4 * 1199
    assert scalar(database, "select count(*) from metrics where is_nan and key = 'nan'") == 1199
    assert sync(run_dir, f"sqlite:///{database}") == 0


def test_the_first_200_metrics_of_a_run_are_sent(run_dir: Path, database: Path, caplog) -> None:
    journal = Journal(run_dir / "journal.jsonl")
    for step in (1, 2):
        journal.append(step, {f"m{number}": float(number) for number in range(step, 2100)})
    journal.close()
    start(run_dir, f"sqlite:///{database}").close(60, "FINISHED")
    names = {f"m{number}" for number in range(1, 201)}
    assert stored(database, run_dir) == [row for row in expected(run_dir) if row[0] in names]
    assert caplog.text.count("The run has more than 200 metrics. Its journal has m201 and others.") == 1


def test_a_run_created_by_a_request_whose_answer_was_lost_is_found_again(run_dir: Path, database: Path) -> None:
    append(run_dir, range(1, 21))
    Tracker(run_dir, RunRecord(f"sqlite:///{database}", "demo", "first", {}, {}))
    unaware = (run_dir / "mlflow_run.json").read_bytes()  # before `create_run`
    assert sync(run_dir, f"sqlite:///{database}") == 42
    (run_dir / "mlflow_run.json").write_bytes(unaware)
    sync(run_dir, f"sqlite:///{database}")
    assert scalar(database, "select count(*) from runs") == 1
    assert stored(database, run_dir) == expected(run_dir)


def test_a_run_killed_and_resumed_three_times_is_one_run_with_each_step_once(run_dir: Path, server: Server) -> None:
    draw, log = random.Random(5), run_dir.parent / "log"

    def sent() -> int:
        record = RunRecord.load(run_dir)
        return record.offset if record else 0

    for first in (1, 60, 40, 300):
        command = ["tests.support.tracked", str(run_dir), server.uri, str(first), str(10**6)]
        process = Forked(command, os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}, ROOT, log)
        before = sent()
        runs.wait_for(lambda before=before: sent() > before)
        time.sleep(draw.random() * 0.5)
        process.kill()
        process.wait()
    sync(run_dir, server.uri)
    Journal(run_dir / "journal.jsonl").close()  # drops the torn line, if there is one
    key = record_of(run_dir).key
    (run,) = [run for run in runs_of(server.database, "demo") if run.data.tags["maskwright.key"] == key]
    assert (run.info.run_id, run.data.tags["restarts"]) == (run_id(run_dir), "3")
    points = stored(server.database, run_dir)
    assert len(points) > 100
    assert points == expected(run_dir)


def test_sync_follows_the_environment_to_another_store_and_back(
    run_dir: Path, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(run_dir, range(1, 31))
    start(run_dir, f"sqlite:///{database}").close(60, "FINISHED")
    other = copy_empty_store(tmp_path / "other.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{other}")
    assert sync(run_dir) == 63
    assert stored(other, run_dir) == expected(run_dir)
    assert scalar(other, "select status from runs") == "FINISHED"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    sync(run_dir)
    assert stored(database, run_dir) == expected(run_dir)
    assert scalar(database, "select count(*) from runs") == 1


def test_a_server_down_at_start_loses_nothing_as_a_later_sync_fills_the_gap(
    run_dir: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = start(run_dir, "http://127.0.0.1:1")
    append(run_dir, range(1, 201))
    tracker.close(20, "FINISHED")
    with pytest.raises(UserError, match=r"Cannot reach MLflow at http://127\.0\.0\.1:1 "):
        sync(run_dir, "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    assert sync(run_dir) == len(expected(run_dir))
    assert stored(server.database, run_dir) == expected(run_dir)
    assert sync(run_dir) == 0
    assert runs.succeed("track", "sync", run_dir).stdout == "MLflow already has every point\n"
    assert status(server.database, run_dir) == "FINISHED"


def test_closing_is_bounded_when_the_server_is_frozen(run_dir: Path, server: Server) -> None:
    """The whole process must end in time, too: no thread of MLflow's may hold it back until its request times out."""
    server.signal(signal.SIGSTOP)
    try:
        command = [sys.executable, "-m", "tests.support.tracked", str(run_dir), server.uri, "1", "199"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
        ended = time.time()
        closing, closed = map(float, done.stdout.split())
        assert 1.9 < closing < 8
        assert ended - closed < 6
        assert f"maskwright track sync {run_dir}" in done.stderr
    finally:
        server.thaw()
    assert sync(run_dir, server.uri) == 2 * 199
    assert stored(server.database, run_dir) == expected(run_dir)
    assert status(server.database, run_dir) == "FAILED"


@pytest.mark.parametrize("loss", ["cut", "rewritten", "gone"])
def test_a_journal_that_lost_its_end_gives_each_step_once(run_dir: Path, database: Path, loss: str) -> None:
    """As after a power failure: the steps are made again, after two further starts, and one has another metric."""
    start(run_dir, f"sqlite:///{database}").close(60, "KILLED")
    append(run_dir, range(1, 101))
    sync(run_dir, f"sqlite:///{database}")
    sent = stored(database, run_dir)
    assert sent[-1][1] == 100
    journal = run_dir / "journal.jsonl"
    kept = [] if loss == "gone" else journal.read_bytes().splitlines(keepends=True)[:80]
    journal.write_bytes(b"".join(kept))
    again = Journal(journal)
    for number in range(10):  # so that the same steps are elsewhere
        again.append(len(kept), {f"checkpoint/{number}": 1.25})
    again.close()
    append(run_dir, range(len(kept) + 1, 121 if loss == "rewritten" else len(kept) + 6))
    start(run_dir, f"sqlite:///{database}").close(60, "KILLED")
    append(run_dir, range(len(kept) + 6, 91))
    start(run_dir, f"sqlite:///{database}").close(60, "KILLED")
    append(run_dir, range(91, 131))
    start(run_dir, f"sqlite:///{database}").close(60, "FINISHED")
    rows = stored(database, run_dir)
    assert [(name, step) for name, step, _ in rows] == sorted({(name, step) for name, step, _ in rows})
    assert [step for name, step, _ in rows if name == "train/loss"] == list(range(1, 131))
    assert scalar(database, "select count(*) from runs") == 1


def test_an_artifact_store_that_fails_stops_no_metric(
    run_dir: Path, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (database.parent / "mlflow-artifacts").write_text("a file, where a folder must be")
    tracker = start(run_dir, f"sqlite:///{database}")
    append(run_dir, range(1, 51))
    wait_for_step(run_dir, 50)
    append(run_dir, range(51, 101))
    tracker.close(60, "FINISHED")
    assert stored(database, run_dir) == expected(run_dir)
    assert status(database, run_dir) == "FINISHED"
    assert record_of(run_dir).artifacts == ["config.yaml"]
    assert caplog.text.count("MLflow takes no files (not a directory). Metrics are sent without them.") == 1
    assert f"Some files were not sent to MLflow. Send them with: maskwright track sync {run_dir} " in caplog.text
    with pytest.raises(UserError, match=r"has the metrics of .*, but takes no files"):
        sync(run_dir, f"sqlite:///{database}")
    (database.parent / "mlflow-artifacts").unlink()
    assert sync(run_dir, f"sqlite:///{database}") == 0
    assert record_of(run_dir).artifacts == []


def test_a_refused_login_and_an_outage_are_told_apart(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    proxy = Proxy("http://127.0.0.1:1")
    try:
        for mode, words in (
            ("401", "Cannot use MLflow at .*HTTP 401, the login is refused: set"),
            ("502", "Cannot reach"),
        ):
            proxy.mode = mode
            start(run_dir, proxy.uri).close(60, "FINISHED")
            assert re.search(words, caplog.text), caplog.text
            caplog.clear()
        proxy.mode = "403"
        with pytest.raises(UserError, match="HTTP 403, the login is refused: set MLFLOW_TRACKING_USERNAME"):
            sync(run_dir, proxy.uri)
    finally:
        proxy.close()


@pytest.mark.parametrize("where", ["file", "server"])
def test_a_deleted_experiment_is_named_before_and_during_training(
    where: str, run_dir: Path, database: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    uri = f"sqlite:///{database}" if where == "file" else request.getfixturevalue("server").uri
    client = MlflowClient(uri)
    client.delete_experiment(client.create_experiment("deleted"))
    wanted = "experiment 'deleted' was deleted. Restore it with `mlflow experiments restore --experiment-id "
    with pytest.raises(UserError, match=wanted):
        check_tracking(TrackConfig(uri=uri, experiment="deleted"))
    check_tracking(TrackConfig(uri=uri, experiment="another"))
    start(run_dir, uri, experiment="deleted").close(60, "FINISHED")
    assert wanted in caplog.text
    assert "Cannot reach" not in caplog.text
    with pytest.raises(UserError, match=wanted):
        sync(run_dir, uri)
