"""Tracked runs without training: their journals, and the expected content of MLflow.

`python -m tests.support.tracked RUN URI FIRST LAST` tracks a run in a process of its own.
"""

import contextlib
import sqlite3
import sys
import time
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from pretrain.run import Entry, Journal
from pretrain.tracking import RunRecord, Tracker
from tests.support.runs import wait_for


def start(
    run_dir: Path, uri: str, params: dict[str, str] | None = None, experiment: str = "demo", parent: str | None = None
) -> Tracker:
    tags = {"dataset.fingerprint": "abc"}
    params = params or {"train.steps": "100"}
    record = RunRecord(uri, experiment, "first", params, tags, parent, artifacts=["config.yaml"], description="d")
    tracker = Tracker(run_dir, record, seconds_between_sends=0.1)
    tracker.start()
    return tracker


def append(run_dir: Path, steps: range) -> None:
    journal = Journal(run_dir / "journal.jsonl")
    for step in steps:
        metrics = {"train/loss": 6.0 + 1 / (step + 3), "train/learning_rate": step * 1e-5}
        journal.append(step, metrics | ({"eval/loss": 5.0} if step % 10 == 0 else {}))
    journal.close()


def expected(run_dir: Path) -> list[tuple[str, int, float]]:
    """The expected content of MLflow, sorted: for each (metric, step) the value of the first line that has it."""
    first: dict[tuple[str, int], float] = {}
    for line in (run_dir / "journal.jsonl").read_bytes().splitlines():
        entry = Entry.from_line(line)
        assert entry is not None
        for name, value in entry.metrics.items():
            first.setdefault((name, entry.step), value)
    return sorted((name, step, value) for (name, step), value in first.items())


def record_of(run_dir: Path) -> RunRecord:
    record = RunRecord.load(run_dir)
    assert record is not None
    return record


def run_id(run_dir: Path) -> str:
    own = record_of(run_dir).run_id
    assert own is not None
    return own


def stored(database: Path, run_dir: Path) -> list[tuple[str, int, float]]:
    """(metric, step, value) of every row that a store has of the run, duplicates included, sorted."""
    query = "select key, step, value from metrics where run_uuid = ? order by key, step, value"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, (run_id(run_dir),)).fetchall()


def scalar(database: Path, query: str) -> object:
    """The first value that a query gives."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchone()[0]


def status(database: Path, run_dir: Path) -> object:
    """The status of a run in a store."""
    return scalar(database, f"select status from runs where run_uuid = '{run_id(run_dir)}'")


def runs_of(database: Path, experiment: str) -> list[Run]:
    """The runs of an experiment in a store."""
    client = MlflowClient(f"sqlite:///{database}")
    return list(client.search_runs([client.get_experiment_by_name(experiment).experiment_id]))


def wait_for_step(run_dir: Path, step: int) -> None:
    """Wait until a step was sent."""
    wait_for(lambda: (record := RunRecord.load(run_dir)) and record.step == step, 240)


def main(run_dir: Path, uri: str, first: int, last: int) -> None:
    """Steps `first` to `last`; then close in at most two seconds, and print how long that took and when it was over."""
    record = RunRecord(uri, "demo", "first", {}, {}, artifacts=["config.yaml"])
    tracker = Tracker(run_dir, record, seconds_between_sends=0.01)
    tracker.start()
    journal = Journal(run_dir / "journal.jsonl")
    for step in range(first, last + 1):
        journal.append(step, {"train/loss": 1 / step, "train/learning_rate": step / 7})
        time.sleep(0.002)
    started = time.monotonic()
    tracker.close(2.0, "FAILED")
    print(time.monotonic() - started, time.time())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
