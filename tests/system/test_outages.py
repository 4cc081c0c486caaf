"""MLflow down, frozen, failing, full or replaced: training does not wait, and MLflow finally has each point once."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from mlflow import MlflowClient

from pretrain.config import Config
from pretrain.reporting import reporter
from pretrain.run import RunFolder
from pretrain.tracking import Tracker, sync
from tests.support.mlflow_server import Proxy, Server
from tests.support.runs import wait_for
from tests.support.tracked import append, expected, record_of, run_id, runs_of, start, status, stored, wait_for_step

AWAY = "Cannot reach MLflow"
ENVIRONMENT = {"git_commit": None, "git_changes": False, "slurm": {}, "packages": {"maskwright": "0"}}
ENVIRONMENT |= {"processes": 1, "hosts": [{"host": "here"}], "parameters": 1}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "4")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.uri)
    yield proxy
    proxy.close()


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


def test_no_call_of_the_loop_waits_for_the_network(
    run_dir: Path, server: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request is not answered until all of the loop's calls have returned, nor are there others.

    A call that waited for MLflow would not return before the request has timed out, and another has come.
    """
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    connecting: set[int] = set()
    sys.addaudithook(lambda event, _: connecting.add(threading.get_ident()) if event == "socket.connect" else None)
    sections = {"run": {"dir": run_dir}, "data": {"train": "data"}, "train": {"steps": 2000}}
    track = {"uri": proxy.uri, "experiment": "waiting", "system_seconds": 0}
    config = Config.model_validate(sections | {"track": track})
    proxy.mode = "hold"
    trackers: list[Tracker] = []

    class KnownTracker(Tracker):
        def __init__(self, *arguments: Any, **others: Any) -> None:
            super().__init__(*arguments, **others)
            trackers.append(self)

    monkeypatch.setattr(reporter, "Tracker", KnownTracker)
    data = SimpleNamespace(fingerprint="0", datasets=())
    told = reporter.Reports(config, RunFolder(run_dir), 0, ["here"], data, None, 0, ENVIRONMENT)  # type: ignore[arg-type]
    for step in range(1, 2001):
        told.report(step, {"train/loss": 1 / step}, {"rows": 8})
        if step == 1:  # the thread starts with the first step
            wait_for(lambda: proxy.requests["hold"])
        if step % 500 == 0:
            trackers[0].log_artifact(run_dir / "config.yaml")
    assert proxy.requests == {"hold": 1}
    proxy.mode = "pass"
    told.close("completed", None)
    assert connecting
    assert threading.get_ident() not in connecting
    assert stored(server.database, run_dir) == expected(run_dir)


@pytest.mark.parametrize("mode", ["hold", "500", "lost", "full disk"])
def test_an_outage_in_the_middle(
    mode: str, run_dir: Path, server: Server, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = start(run_dir, proxy.uri)
    append(run_dir, range(1, 51))
    wait_for_step(run_dir, 50)
    with server.full_disk() if mode == "full disk" else patch.object(proxy, "mode", mode):
        append(run_dir, range(51, 2001))
        wait_for(lambda: said(caplog, AWAY))
        append(run_dir, range(1901, 2051))  # a resume meanwhile
        before = proxy.requests.total()
        wait_for(lambda: proxy.requests.total() > before + 1)
        assert record_of(run_dir).step < 2050
    wait_for_step(run_dir, 2050)
    tracker.close(60, "FINISHED")
    assert said(caplog, AWAY) == said(caplog, "MLflow is back") == 1
    if mode in ("500", "full disk"):
        assert said(caplog, "(HTTP 50") == 1
    assert stored(server.database, run_dir) == expected(run_dir)
    assert status(server.database, run_dir) == "FINISHED"
    assert sync(run_dir, proxy.uri) == 0


@pytest.mark.slow
def test_a_server_that_is_stopped_and_another_in_its_place(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped in the middle; another server, with other data, on its port; then the first one again."""
    (tmp_path / "first").mkdir()
    (tmp_path / "other").mkdir()
    first = Server(tmp_path / "first")
    try:
        tracker = start(run_dir, first.uri)
        append(run_dir, range(1, 101))
        wait_for_step(run_dir, 100)
        id_there = run_id(run_dir)
        first.stop()
        append(run_dir, range(101, 201))
        wait_for(lambda: said(caplog, AWAY))
        other = Server(tmp_path / "other", first.port)
        try:
            wait_for_step(run_dir, 200)
            assert run_id(run_dir) != id_there
            assert stored(other.database, run_dir) == expected(run_dir)
        finally:
            other.stop()
        append(run_dir, range(181, 301))
        first = Server(tmp_path / "first", first.port)
        wait_for_step(run_dir, 300)
        tracker.close(60, "FINISHED")
        assert run_id(run_dir) == id_there
        assert stored(first.database, run_dir) == expected(run_dir)
        assert len(runs_of(first.database, "demo")) == 1
    finally:
        first.stop()


def test_children_that_begin_at_once_share_one_parent(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All look for the parent before any has made it, so that each makes one."""
    together, search, first = threading.Barrier(5), MlflowClient.search_runs, threading.local()
    waited: list[str] = []

    def wait_before_making(client: MlflowClient, *arguments: Any, filter_string: str = "", **others: Any) -> object:
        found = search(client, *arguments, filter_string=filter_string, **others)
        if "maskwright.study" in filter_string and not hasattr(first, "done"):
            first.done = True
            together.wait(30)
            waited.append(filter_string)
        return found

    monkeypatch.setattr(MlflowClient, "search_runs", wait_before_making)
    trackers = []
    for name in "abcde":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("{}")
        append(tmp_path / name, range(1, 4))
        trackers.append(start(tmp_path / name, server.uri, experiment="study", parent="five 'seeds'"))
    for tracker in trackers:
        tracker.close(60, "FINISHED")
    monkeypatch.undo()
    assert len(waited) == 5, "all have looked before any made it"
    found = runs_of(server.database, "study")
    (parent,) = [run for run in found if run.info.run_name == "five 'seeds'"]
    children = [run.data.tags["mlflow.parentRunId"] for run in found if run is not parent]
    assert children == [parent.info.run_id] * 5
    assert parent.info.status == "FINISHED"

    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "config.yaml").write_text("{}")
    start(tmp_path / "late", server.uri, experiment="study", parent=parent.info.run_id).close(60, "FINISHED")
    assert parent_of(server, tmp_path / "late") == parent.info.run_id


def parent_of(server: Server, run_dir: Path) -> str:
    client = MlflowClient(f"sqlite:///{server.database}")
    return str(client.get_run(run_id(run_dir)).data.tags["mlflow.parentRunId"])


def test_an_id_that_the_server_does_not_know_is_a_name(run_dir: Path, server: Server) -> None:
    start(run_dir, server.uri, experiment="unknown parent", parent="0" * 32).close(60, "FINISHED")
    found = {run.info.run_name: run.info.run_id for run in runs_of(server.database, "unknown parent")}
    assert parent_of(server, run_dir) == found["0" * 32]
