"""Brings MLflow up to what a run folder holds."""

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.files import write_json
from data_prep.remote import redact
from pretrain.tracking.artifacts import open_inside, private_copy
from pretrain.tracking.bulk import Point, log_points
from pretrain.tracking.points import SentSteps, lines, metric_name, over_nodes
from pretrain.tracking.record import JOURNAL_NAME, RECORD_NAME, RunRecord
from pretrain.tracking.runs import open_run
from pretrain.tracking.target import connect

if TYPE_CHECKING:
    from mlflow import MlflowClient

_log = logging.getLogger(__name__)

_MOST_AT_ONCE = 900  # points, and the rest of the line that reached it; MLflow takes 1,000 in one request
_LEAST_AT_ONCE = 50


class Sender:
    """`send` belongs to one thread; any method may raise.

    Args:
        on_progress: called with the bytes of the journal that have been sent so far, after each request.
    """

    def __init__(self, run_dir: Path, uri: str, record: RunRecord, on_progress: Callable[[int], None] | None = None):
        self.record = record
        self._run_dir = run_dir
        self._uri = uri
        self._on_progress = on_progress or (lambda offset: None)
        self._lock = threading.Lock()  # the trainer queues artifacts while the thread records its progress
        self._client: MlflowClient | None = None
        self._run_id = ""  # known once connected
        self._sent = SentSteps()
        self._at_once = _MOST_AT_ONCE

    def queue_artifact(self, path: Path) -> None:
        """Queue a file of the run folder. Raises ValueError for a file outside of it."""
        name = str(path.absolute().relative_to(self._run_dir.absolute()))
        self.update(artifacts=[*(other for other in self.record.artifacts if other != name), name])

    def end(self, status: str) -> None:
        self.update(status=status, end_time=int(time.time() * 1000))

    def send(self) -> int:
        """Send all that waits; the number of points. After an error the connection is made anew."""
        client, self._client = self._client or self._connect(), None
        points = self._send_journal(client)
        self._at_once = min(_MOST_AT_ONCE, 2 * self._at_once)
        self._send_artifacts(client)
        if self.record.status != "RUNNING":
            client.set_terminated(self._run_id, self.record.status, self.record.end_time)
        self._client = client
        return points

    def update(self, **changes: Any) -> None:
        """Change the record, in memory first and then on disk."""
        with self._lock:
            for name, value in changes.items():
                setattr(self.record, name, value)
            write_json(self._run_dir / RECORD_NAME, asdict(self.record))

    def _connect(self) -> "MlflowClient":
        client, experiment_id = connect(self._uri, self.record.experiment)
        self._run_id = open_run(client, experiment_id, self.record)
        if self._run_id != self.record.run_id:
            self.update(run_id=self._run_id, experiment_id=experiment_id, offset=0, step=-1)
        elif experiment_id != self.record.experiment_id:
            self.update(experiment_id=experiment_id)
        self._sent = SentSteps()
        for _, entry in lines(self._journal, 0, self.record.offset):
            self._sent.take_new(over_nodes(entry))
        return client

    @property
    def _journal(self) -> Path:
        return self._run_dir / JOURNAL_NAME

    def _send_journal(self, client: "MlflowClient") -> int:
        sent = 0
        points: list[Point] = []
        last = self.record.offset, self.record.step
        for end, entry in lines(self._journal, self.record.offset, None):
            last = end, entry.step
            new, when = self._sent.take_new(over_nodes(entry)), int(entry.time * 1000)
            points += [Point(metric_name(name), value, when, entry.step) for name, value in new.items()]
            if len(points) >= self._at_once:
                sent += self._send_points(client, points, *last)
                points = []
        return sent + self._send_points(client, points, *last)

    def _send_points(self, client: "MlflowClient", points: list[Point], end: int, step: int) -> int:
        """Send the points of the journal up to byte `end`, then record that; returns their number."""
        if end > self.record.offset:
            try:
                log_points(client, self._uri, self._run_id, points)
            except Exception:
                self._at_once = max(_LEAST_AT_ONCE, self._at_once // 2)  # it may have been too much for the time limit
                raise
            self.update(offset=end, step=step)
            self._on_progress(end)
        return len(points)

    def _send_artifacts(self, client: "MlflowClient") -> None:
        for name in list(self.record.artifacts):
            try:
                file = open_inside(self._run_dir, name)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) and error.strerror else error
                _log.warning("%.100r is not sent to MLflow: it is no regular file in %s (%s)", name, self._run_dir, why)
            else:
                with file, private_copy(file, Path(name).name) as copy:
                    client.log_artifact(self._run_id, str(copy), str(Path(name).parent) if "/" in name else None)
            self.update(artifacts=[other for other in self.record.artifacts if other != name])


def one_line(error: Exception) -> str:
    """What went wrong, without secrets."""
    text = str(error).strip()
    return redact(text.splitlines()[0][:400] if text else type(error).__name__)


def short_reason(error: Exception) -> str:
    """Why MLflow was not reached, in a few words and without secrets; its client's own text fills a screen."""
    text = redact(str(error))
    if found := re.search(r"\[Errno -?\d+\] ([\w ,]+)", text):
        return found[1].lower()
    if "timed out" in text.lower():
        return "no answer in time"
    if found := re.search(r"(?:error code|status code:?) (\d{3})|\b(\d{3}) (?:error|response)", text):
        return f"HTTP {found[1] or found[2]}"
    return one_line(error)[:100]
