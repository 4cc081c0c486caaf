"""Points that are written past MLflow's client are what MLflow would have written."""

import contextlib
import math
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from pretrain.tracking import bulk
from pretrain.tracking.bulk import Point, log_points
from pretrain.tracking.target import connect
from tests.support.mlflow_server import Proxy

FIRST = [Point("loss", 1 / step, 1000 + step, step) for step in (1, 2, 5, 3, 4)] + [Point("seldom", -0.5, 7, 7)]
# sent twice; the newest by step, by time and by value; NaN before and after a number
SECOND = [*FIRST, Point("seldom", 2.0, 9, 9), Point("seldom", 1.0, 9, 9)]
SECOND += [Point("loss", 0.1, 1006, 5), Point("loss", 0.3, 1006, 5), Point("loss", 0.2, 1006, 5)]
SECOND += [Point("odd", math.nan, 1, 1), Point("odd", 2.0, 2, 2), Point("odd", math.inf, 3, 3), Point("odd", 4.0, 4, 4)]
LATER = [Point("seldom", 9.0, 6, 6), Point("loss", 0.5, 1006, 5)]  # older than what is there, and newer by value


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    path = tmp_path_factory.mktemp("bulk") / "it's 50% #1.db"
    uri = f"sqlite:///{path}"
    found, experiment = connect(uri, "bulk")
    return SimpleNamespace(mlflow=found, experiment=experiment, path=path, uri=uri)


def rows(path: Path, table: str, run_id: str) -> list[tuple[object, ...]]:
    query = f"select key, value, timestamp, step, is_nan from {table} where run_uuid = ? order by 1, 4, 3, 2"
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute(query, [run_id]).fetchall()


def test_rows_are_those_of_mlflows_own_client(client: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = client.mlflow.create_run(client.experiment).info.run_id
    quick = client.mlflow.create_run(client.experiment).info.run_id
    by_client: list[int] = []
    log_batch = client.mlflow.log_batch

    def counted(run_id: str, metrics: list[object]) -> None:
        by_client.append(len(metrics))
        log_batch(run_id, metrics=metrics)

    monkeypatch.setattr(client.mlflow, "log_batch", counted)
    for points in (FIRST, SECOND, LATER):
        log_points(client.mlflow, client.uri, quick, points)
    assert by_client == [2]  # what is not finite
    with monkeypatch.context() as patch:
        patch.setattr(bulk, "_insert", lambda *_: False)
        for points in (FIRST, SECOND, LATER):
            log_points(client.mlflow, client.uri, plain, points)
    for table in ("metrics", "latest_metrics"):
        assert rows(client.path, table, quick) == rows(client.path, table, plain) != []


def test_a_deleted_run_and_other_columns_are_left_to_mlflow(
    client: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = client.mlflow.create_run(client.experiment).info.run_id
    client.mlflow.delete_run(deleted)
    with pytest.raises(Exception, match="active"):
        log_points(client.mlflow, client.uri, deleted, FIRST)
    assert rows(client.path, "metrics", deleted) == []

    run = client.mlflow.create_run(client.experiment).info.run_id
    assert bulk._insert(client.path, run, FIRST[:1])
    monkeypatch.setattr(bulk, "_COLUMNS", bulk._COLUMNS | {"new"})
    assert not bulk._insert(client.path, run, FIRST)
    log_points(client.mlflow, client.uri, run, FIRST)
    assert len(rows(client.path, "metrics", run)) == len(FIRST)


def test_all_of_a_request_or_none(client: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    run = client.mlflow.create_run(client.experiment).info.run_id
    monkeypatch.setattr(bulk, "_REPLACE", "INSERT INTO nowhere VALUES (?, ?, ?, ?, ?)")
    with pytest.raises(sqlite3.OperationalError):
        log_points(client.mlflow, client.uri, run, FIRST)
    assert rows(client.path, "metrics", run) == []


def test_a_file_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        log_points(None, f"sqlite:///{tmp_path}/gone.db", "0", FIRST)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_no_request_holds_more_than_mlflow_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow.utils.rest_utils as rest

    sizes: list[int] = []

    def take(*_: object, json: dict[str, list[object]]) -> SimpleNamespace:
        sizes.append(len(json["metrics"]))
        return SimpleNamespace(status_code=200, text="{}")

    monkeypatch.setattr(rest, "http_request", take)
    log_points(None, "http://nowhere", "0", [Point("m", 1.0, step, step) for step in range(2100)])  # type: ignore[arg-type]
    assert sizes == [1000, 1000, 100]


def test_an_answer_that_is_an_error_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    proxy = Proxy("http://127.0.0.1:1")
    proxy.mode = "500"
    try:
        with pytest.raises(Exception, match="500"):
            log_points(None, proxy.uri, "0", FIRST)  # type: ignore[arg-type]
    finally:
        proxy.close()
