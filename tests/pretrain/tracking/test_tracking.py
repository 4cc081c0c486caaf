"""MLflow addresses, secrets and the choice of sent values, without an MLflow store."""

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from click.testing import Result
from mlflow.utils.validation import _validate_metric_name
from typer.testing import CliRunner

from data_prep.common.errors import UserError
from data_prep.common.files import file_lock
from data_prep.common.urls import hide_secrets, redact
from pretrain.config import TrackConfig
from pretrain.planning import check_tracking
from pretrain.run import Entry
from pretrain.tracking import Point, RunRecord, Target, Tracker, sync
from pretrain.tracking.journal_points import SentSteps, metric_name, over_nodes
from pretrain.tracking.run_record import run_tags
from pretrain.tracking.tracking_target import page_of_record
from tests.support.empty_store import copy_empty_store
from tests.support.in_process import app
from tests.support.tracked import record_of


@pytest.mark.parametrize(
    "hide, text, kept",
    [
        (redact, "https://user:pa@ss@host:5000/x", "https://***@host:5000/x"),
        (redact, "postgresql://u:pa/ss@host/db", "postgresql://***@host/db"),
        (redact, "API request to http://u:p@h/api failed: bad", "API request to http://***@h/api failed: bad"),
        (redact, "sql://host/db?user=u&password=p&sslmode=on", "sql://host/db?user=u&password=***&sslmode=on"),
        (redact, "https://host/?api_key=k", "https://host/?api_key=***"),
        (redact, "https://h/x?X-Amz-Date=1&X-Amz-Signature=s", "https://h/x?X-Amz-Date=1&X-Amz-Signature=***"),
        (redact, "https://h/x?X-Amz-Credential=c&sv=1&sig=s", "https://h/x?X-Amz-Credential=***&sv=1&sig=***"),
        (redact, "sqlite:////home/a@b/mlflow.db", "sqlite:////home/a@b/mlflow.db"),
        (redact, "http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        (hide_secrets, "HTTP 400: Authorization: Bearer abc.def-123", "HTTP 400: Authorization: Bearer ***"),
        (hide_secrets, "{'authorization': 'Basic dXNlcjpwYXNz'}", "{'authorization': 'Basic ***'}"),
        (hide_secrets, '"Authorization":"abcdefgh"', '"Authorization":"***"'),
        (hide_secrets, "token hf_abcdefghij of someone", "token hf_*** of someone"),
        (hide_secrets, "bearer abcdefgh123 at http://u:p@h", "bearer *** at http://***@h"),
        (hide_secrets, "one token of 12345678 tokens; hf_hub", "one token of 12345678 tokens; hf_hub"),
    ],
)
def test_secrets_are_hidden(hide: Callable[[str], str], text: str, kept: str) -> None:
    assert hide(text) == hide(kept) == kept


def test_the_environment_wins_over_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Target.of_training("http://a", "demo") == ("http://a", "demo")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://b")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "other")
    assert Target.of_training("http://a", "demo") == ("http://b", "other")


def test_the_default_address_is_a_file_of_a_folder_with_any_name(tmp_path, monkeypatch) -> None:
    name = "a?b=1&c 50%20x é#@"
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    target = Target.of_training("sqlite:///in/mlflow.db?timeout=9", "demo")
    assert target.sqlite_path == tmp_path / name / "in/mlflow.db"
    assert Target.of_training(target.uri, "demo") == target, "an absolute address stays as it is"
    client, experiment = target.connect()
    location = client.get_experiment(experiment).artifact_location
    assert url2pathname(urlsplit(location).path) == f"{tmp_path}/{name}/in/mlflow-artifacts/demo"
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing beside it"
    assert (tmp_path / name / "in/mlflow.db").exists()


def test_each_metric_of_a_step_is_new_once() -> None:
    sent = SentSteps()
    assert sent.take_new(Entry(5, 0.0, {"a": 1.0})) == [Point("a", 1.0, 0.0, 5)]
    assert sent.take_new(Entry(5, 9.0, {"a": 2.0, "b": 3.0})) == [Point("b", 3.0, 9.0, 5)]
    assert sent.take_new(Entry(4, 9.0, {"a": 4.0})) == [Point("a", 4.0, 9.0, 4)]  # a step that was skipped before
    assert sent.take_new(Entry(4, 9.0, {"a": 4.0})) == []
    assert sent.add(1 << 62, ["a"]) == ["a"]  # of a damaged journal; it takes little memory
    assert sent.add(1 << 62, ["a"]) == []


def test_a_password_is_neither_written_nor_logged_and_sync_asks_for_it(tmp_path, caplog) -> None:
    with caplog.at_level(logging.DEBUG, logger="pretrain.tracking"):
        tracker = Tracker(tmp_path, RunRecord("http://me:hunter2@127.0.0.1:1", "demo", "r", {}, {}))
        tracker.start()
        tracker.close(30, "FINISHED")
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2, messages  # the outage, once, and what to do
    assert "127.0.0.1" in messages[0]
    assert f"maskwright track sync {tmp_path}" in messages[1]
    assert "hunter2" not in caplog.text + (tmp_path / "mlflow_run.json").read_text()
    with pytest.raises(UserError, match="Set MLFLOW_TRACKING_URI"):
        sync(tmp_path)


def test_sync_names_what_is_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no mlflow_run\.json"):
        sync(tmp_path)
    (tmp_path / "mlflow_run.json").write_text('{"uri": ')
    with pytest.raises(UserError, match=r"mlflow_run\.json cannot be used"):
        sync(tmp_path)
    record = asdict(RunRecord("http://127.0.0.1:1", "demo", "r", {}, {}))
    for wrong in ({"server": 1}, record | {"key": "../../*"}, record | {"key": ""}):
        (tmp_path / "mlflow_run.json").write_text(json.dumps(wrong))
        with pytest.raises(UserError, match=r"mlflow_run\.json cannot be used"):
            sync(tmp_path)


def test_a_tracker_survives_a_damaged_record_and_a_folder_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "mlflow_run.json").write_text("{")
    Tracker(tmp_path, RunRecord("sqlite:///x.db", "demo", "r", {}, {}))
    assert json.loads((tmp_path / "mlflow_run.json").read_text())["run_id"] is None
    gone = Tracker(tmp_path / "gone", RunRecord("http://127.0.0.1:1", "demo", "r", {}, {}, artifacts=["config.yaml"]))
    gone.log_artifact(tmp_path / "gone" / "model")
    gone.close(1, "FAILED")


def test_artifacts_wait_in_the_record_each_once(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path, RunRecord("http://127.0.0.1:1", "demo", "r", {}, {}, artifacts=["config.yaml"]))
    tracker.log_artifact(tmp_path / "report.html")
    tracker.log_artifact(tmp_path / "config.yaml")
    assert record_of(tmp_path).artifacts == ["report.html", "config.yaml"]


def test_a_process_that_ends_while_mlflow_makes_its_tables_leaves_a_usable_database(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"
    target = f"Target('sqlite:///{database}', 'e')"
    code = f"from pretrain.tracking.tracking_target import Target; {target}.connect()"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        while process.poll() is None and not (database.exists() and database.stat().st_size > 300_000):
            time.sleep(0.001)
        process.kill()
    assert Target(f"sqlite:///{database}", "e").connect()[1] == "1"


def test_runs_that_begin_at_once_open_a_sqlite_file_one_after_the_other(tmp_path: Path) -> None:
    path = copy_empty_store(tmp_path / "mlflow.db")
    with file_lock(Path(f"{path}.lock")):
        other = threading.Thread(target=Target(f"sqlite:///{path}", "demo").connect, daemon=True)
        other.start()
        other.join(0.5)
        assert other.is_alive()
    other.join(60)
    assert not other.is_alive()


@pytest.mark.parametrize(
    "name, sent",
    [
        ("train/loss", "train/loss"),
        ("system/node-1.cluster:gpu 0", "system/node-1.cluster:gpu 0"),
        ("data/epoch/b\u00fccher (1)*", "system/data_epoch/b\u00fccher _1__"),
        ("data/epoch/../x", "_system_data_epoch_.._x"),
        ("checkpoint/write_seconds", "system/checkpoint_write_seconds"),
        ("speed/step_seconds", "system/step_seconds"),
        ("speed/tokens_per_second", "train/tokens_per_second"),
        ("/abs", "__abs"),
        ("a//b", "_a__b"),
        ("x" * 300, "x" * 250),
    ],
)
def test_a_metric_s_name_is_one_that_mlflow_takes(name: str, sent: str) -> None:
    assert metric_name(name) == metric_name(sent) == sent
    _validate_metric_name(sent)


def test_64_nodes_are_few_series() -> None:
    nodes = {f"system/node-{n:02d}.cluster/cpu_percent": float(n) for n in range(64)}
    gpus = {f"system/node-{n:02d}.cluster/gpu{g}_power_watts": 100.0 * n + g for n in range(64) for g in range(8)}
    sent = over_nodes({"train/loss": 2.0, **nodes, **gpus})
    cpu = {"system/cpu_percent_mean": 31.5, "system/cpu_percent_min": 0.0, "system/cpu_percent_max": 63.0}
    power = {"mean": 3153.5, "min": 0.0, "max": 6307.0}
    assert sent == {"train/loss": 2.0, **cpu} | {f"system/gpu_power_watts_{name}": power[name] for name in power}
    assert over_nodes({"system/node-1/cpu_percent": 7.0}) == {"system/cpu_percent_mean": 7.0}


def test_the_page_of_a_run_opens_on_mlflow_s_pages_for_training() -> None:
    def page(uri: str, **ids: str | None) -> str | None:
        known = {"run_id": "a" * 32, "experiment_id": "7"} | ids
        return page_of_record(RunRecord(uri, "demo", "r", {}, {}, **known))  # type: ignore[arg-type]

    there = f"#/experiments/7/runs/{'a' * 32}?workflowType=machine_learning"
    assert page("http://host:5000/") == f"http://host:5000/{there}"
    assert page("sqlite:////a b/mlflow.db") == (
        f"mlflow ui --backend-store-uri 'sqlite:////a b/mlflow.db'   then open http://127.0.0.1:5000/{there}"
    )
    assert page("databricks") is None
    assert page("http://***@host") == f"http://***@host/{there}"
    assert page("javascript:alert(1)") is None
    assert page("http://host", run_id=None) is None
    assert page("http://host", experiment_id="7/../../x") is None


def test_an_offline_run_says_how_it_is_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")  # the site's; this run is not to be sent
    threads = threading.active_count()
    tracker = Tracker(tmp_path, RunRecord("none", "demo", "r", {}, {}))
    tracker.start()
    assert threading.active_count() == threads
    tracker.close(30, "FINISHED")
    assert [record.getMessage() for record in caplog.records] == [
        f"Nothing was sent to MLflow (track.uri: none). Send it with: maskwright track sync {tmp_path} --uri ADDRESS"
    ]
    assert (record_of(tmp_path).uri, record_of(tmp_path).status) == ("none", "FINISHED")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(UserError, match="with --uri"):
        sync(tmp_path)


def test_restarts_are_counted_and_another_experiment_is_another_run(tmp_path: Path) -> None:
    def started(experiment: str) -> RunRecord:
        Tracker(tmp_path, RunRecord("none", experiment, "r", {}, {}))
        return record_of(tmp_path)

    first, second, third = started("a"), started("a"), started("b")
    assert [record.restarts for record in (first, second, third)] == [0, 1, 2]
    assert first.key == second.key != third.key


def test_tags_tell_where_a_run_was_trained() -> None:
    slurm = {"SLURM_JOB_ID": "4713", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3"}
    environment = {"git_commit": "c0ffee", "git_changes": True, "packages": {"maskwright": "0.1.0"}, "slurm": slurm}
    environment |= {"processes": 16, "hosts": [{"host": "node1"}, {"host": "node2"}]}
    tags = run_tags("f00d", environment)
    told = {"dataset": "f00d", "git_commit": "c0ffee", "git_changes": "true", "mlflow.source.git.commit": "c0ffee"}
    told |= {"hosts": "node1, node2", "slurm_job_id": "4711", "slurm_array_task_id": "3", "world_size": "16"}
    told |= {"mlflow.source.name": "maskwright train", "maskwright_version": "0.1.0"}
    assert tags == told
    bare = run_tags("f00d", environment | {"git_commit": None, "git_changes": False, "slurm": {}})
    assert bare["git_commit"] == "unknown"
    assert not [name for name in bare if name.startswith(("slurm", "mlflow.source.git", "git_changes"))]


def test_the_command_takes_many_runs_and_no_password(tmp_path: Path) -> None:
    def run(*words: object) -> Result:
        return CliRunner().invoke(app, ["track", "sync", *map(str, words)])

    for name in ("a", "b", "new"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "status.json").write_text("{}")
    for name in ("a", "b"):
        Tracker(tmp_path / "runs" / name, RunRecord("none", "demo", name, {}, {}))
    done = run(tmp_path / "runs", "--json")
    assert done.exit_code == 1
    assert [Path(outcome["run"]).name for outcome in json.loads(done.stdout)] == ["a", "b"]  # `new` was never begun
    assert all("with --uri" in outcome["error"] for outcome in json.loads(done.stdout))
    assert isinstance(run(tmp_path / "none").exception, UserError)
    refused = run(tmp_path / "runs", "--uri", "http://me:hunter2@host").exception
    assert "hunter2" not in str(refused)


@pytest.mark.parametrize(
    "path, reason",
    [("folder", "unable to open database file"), ("text", "file is not a database"), ("text/x.db", "not a directory")],
)
def test_a_file_that_cannot_be_a_database_is_refused_before_training(tmp_path: Path, path: str, reason: str) -> None:
    """At once: MLflow would try for ten minutes."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("not a database, but text that is longer than the header of one" * 20)
    with pytest.raises(UserError, match=reason):
        check_tracking(TrackConfig(uri=f"sqlite:///{tmp_path}/{path}"))
    with pytest.raises(UserError, match=reason):
        Target(f"sqlite:///{tmp_path}/{path}", "demo").connect()
    check_tracking(TrackConfig(uri=f"sqlite:///{tmp_path}/new/mlflow.db"))
    assert not (tmp_path / "new").exists()
