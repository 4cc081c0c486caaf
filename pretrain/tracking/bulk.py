"""Many points into MLflow, for a small part of what its client takes for them.

MLflow's client and its database code make some twenty objects of each point, 0.1 ms of a processor: at eleven metrics a
step more than all the rest of tracking. So points go as one body to a server's REST API, and as rows into the two
tables of a SQLite file. What is not plain, such as NaN, a file with other columns than these, or another kind of
address, goes by MLflow's client.
"""

import contextlib
import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from pretrain.tracking.target import sqlite_path

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Point(NamedTuple):
    """A metric's value at a step; `timestamp` is in Unix milliseconds."""

    key: str
    value: float
    timestamp: int
    step: int


_MOST_A_REQUEST = 1000  # MLflow's limit
_LOG_BATCH = "/api/2.0/mlflow/runs/log-batch"
_COLUMNS = {"key", "value", "timestamp", "step", "is_nan", "run_uuid"}  # of both tables, since MLflow 1.3
_INSERT = "INSERT INTO {} (key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, 0, ?) ON CONFLICT "
_ADD = _INSERT.format("metrics") + "DO NOTHING"
_REPLACE = _INSERT.format("latest_metrics") + (
    "(key, run_uuid) DO UPDATE SET value = excluded.value, timestamp = excluded.timestamp, step = excluded.step, "
    "is_nan = 0 WHERE (excluded.step, excluded.timestamp, excluded.value) > (step, timestamp, value)"
)


def log_points(client: "MlflowClient", uri: str, run_id: str, points: Sequence[Point]) -> None:
    """Give the points to the run; those that it has are left as they are. Raises what MLflow and SQLite raise."""
    left = [point for point in points if not math.isfinite(point.value)]
    plain = [point for point in points if math.isfinite(point.value)]
    path = sqlite_path(uri)
    if uri.startswith(("http://", "https://")):
        _post(uri, run_id, plain)
    elif path is None or "?" in uri or not _insert(path, run_id, plain):
        left = list(points)
    if left:
        from mlflow.entities import Metric

        client.log_batch(run_id, metrics=[Metric(*point) for point in left])


def _post(uri: str, run_id: str, points: Sequence[Point]) -> None:
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request, verify_rest_response

    for start in range(0, len(points), _MOST_A_REQUEST):
        metrics = [point._asdict() for point in points[start : start + _MOST_A_REQUEST]]
        body = {"run_id": run_id, "metrics": metrics}
        verify_rest_response(http_request(get_default_host_creds(uri), _LOG_BATCH, "POST", json=body), _LOG_BATCH)


def _insert(path: Path, run_id: str, points: Sequence[Point]) -> bool:
    """All or none; False, and none, where the file is not as expected or the run is not there or deleted."""
    rows = [(*point, run_id) for point in points]
    latest = {row[0]: row for row in sorted(rows, key=lambda row: (row[3], row[2], row[1]))}
    database = sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=20, isolation_level=None)
    with contextlib.closing(database):
        database.execute("BEGIN IMMEDIATE")
        with database:  # commits, or takes all back
            for table in ("metrics", "latest_metrics"):
                if {column[1] for column in database.execute(f"PRAGMA table_info({table})")} != _COLUMNS:
                    return False
            stage = database.execute("SELECT lifecycle_stage FROM runs WHERE run_uuid = ?", [run_id]).fetchone()
            if stage != ("active",):
                return False
            database.executemany(_ADD, rows)
            database.executemany(_REPLACE, latest.values())
    return True
