"""Forwards the journal and files of a run folder to MLflow."""

import contextlib
import logging
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.files import open_plain, write_json
from data_prep.urls import redact
from pretrain.run import RunFolder
from pretrain.run.journal import Entry, read_lines
from pretrain.tracking.journal_points import Point, SentSteps, over_nodes
from pretrain.tracking.mlflow_runs import MlflowRun, short_reason
from pretrain.tracking.run_record import RECORD_NAME, RunRecord, new_key, require_record
from pretrain.tracking.tracking_target import Target, run_target

_log = logging.getLogger(__name__)

_POINTS_PER_REQUEST = 500  # or the rest of the line more; a slow server takes so many within the time limit


class Sender:
    """`send` belongs to one thread; any method may raise.

    Args:
        on_progress: called with the bytes of the journal that have been sent so far, after each request.
    """

    def __init__(
        self, run_dir: Path, target: Target, record: RunRecord, on_progress: Callable[[int], None] | None = None
    ):
        self.record = record
        self._run_dir, self._target = run_dir, target
        self._journal = RunFolder(run_dir).journal
        self._on_progress = on_progress or (lambda offset: None)
        self._lock = threading.Lock()  # the trainer queues artifacts while the thread records its progress
        self._run: MlflowRun | None = None
        self._sent = SentSteps()

    def queue_artifact(self, name: str) -> None:
        """Queue a file of the run folder."""
        self.update(artifacts=[*(other for other in self.record.artifacts if other != name), name])

    def end(self, status: str) -> None:
        self.update(status=status, end_time=int(time.time() * 1000))

    def send(self) -> int:
        """Send all that waits, and return the number of points. After an error it connects again."""
        run, self._run = self._run or self._connect(), None
        points = self._send_journal(run)
        self._send_artifacts(run)
        if self.record.status != "RUNNING":
            run.end(self.record.status, self.record.end_time)
        self._run = run
        return points

    def update(self, **changes: Any) -> None:
        """Change the record, in memory first and then on disk."""
        with self._lock:
            for name, value in changes.items():
                setattr(self.record, name, value)
            write_json(self._run_dir / RECORD_NAME, asdict(self.record))

    def _connect(self) -> MlflowRun:
        run = MlflowRun.open(self._target, self.record)
        if run.id != self.record.run_id:
            self.update(run_id=run.id, experiment_id=run.experiment_id, offset=0, step=-1)
        elif run.experiment_id != self.record.experiment_id:
            self.update(experiment_id=run.experiment_id)
        self._sent = SentSteps()
        for _, entry in self._entries(0, self.record.offset):
            self._sent.take_new(over_nodes(entry))
        return run

    def _entries(self, start: int, stop: float = math.inf) -> Iterator[tuple[int, Entry]]:
        """(end offset, entry) of the journal's lines between two byte offsets."""
        with contextlib.suppress(FileNotFoundError):  # nothing was measured yet
            yield from ((end, entry) for end, entry in read_lines(self._journal, start, stop) if entry)

    def _send_journal(self, run: MlflowRun) -> int:
        sent = 0
        points: list[Point] = []
        last = self.record.offset, self.record.step
        for end, entry in self._entries(self.record.offset):
            last = end, entry.step
            points += self._sent.take_new(over_nodes(entry))
            if len(points) >= _POINTS_PER_REQUEST:
                sent += self._send_points(run, points, *last)
                points = []
        return sent + self._send_points(run, points, *last)

    def _send_points(self, run: MlflowRun, points: list[Point], end: int, step: int) -> int:
        """Send the points of the journal up to byte `end`, then record that; returns their number."""
        if end > self.record.offset:
            run.log_points(points)
            self.update(offset=end, step=step)
            self._on_progress(end)
        return len(points)

    def _send_artifacts(self, run: MlflowRun) -> None:
        """Upload the queued files. Only regular files directly in the run folder are sent, and no links."""
        for name in list(self.record.artifacts):
            try:
                if Path(name).name != name:
                    raise PermissionError(f"{name!r} is not the name of a file")
                file = open_plain(self._run_dir / name, follow=False)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) and error.strerror else error
                _log.warning("%.100r is not sent to MLflow: it is no regular file in %s (%s)", name, self._run_dir, why)
            else:
                with file, tempfile.TemporaryDirectory() as folder:  # MLflow opens files by path
                    copy = Path(folder, name)
                    copy.write_bytes(file.read())
                    run.client.log_artifact(run.id, str(copy))
            self.update(artifacts=[other for other in self.record.artifacts if other != name])


def sync(
    run_dir: Path,
    uri: str | None = None,
    experiment: str | None = None,
    trust_folder: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Send what MLflow lacks of a run, and return the number of points (metric values) sent.

    May be repeated, and run during the training: MLflow gets each point once.

    Args:
        uri, experiment, trust_folder: as in run_target.
        on_progress: called with the bytes of the journal that have been sent so far.

    Raises:
        UserError: if there is no address, or MLflow does not take the data.
    """
    record, target = require_record(run_dir), run_target(run_dir, uri, experiment, trust_folder)
    if target.experiment != record.experiment:
        record = replace(record, experiment=target.experiment, key=new_key(), run_id=None)
    record.uri = redact(target.uri)
    try:
        return Sender(run_dir, target, record, on_progress).send()
    except Exception as error:
        raise UserError(
            f"MLflow at {record.uri} does not take the data of {run_dir} ({short_reason(error)})"
        ) from error
