"""Forward the journal and files of a run folder to MLflow: from a thread during training, or with `sync`."""

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

from data_prep.common.errors import UserError, unforeseen
from data_prep.common.files import open_plain, write_json
from data_prep.common.urls import redact
from pretrain.config import OFFLINE
from pretrain.run import Entry, JournalReader, RunFolder
from pretrain.tracking.journal_points import Point, SentSteps
from pretrain.tracking.mlflow_runs import MlflowRun
from pretrain.tracking.run_record import RunRecord, new_key
from pretrain.tracking.tracking_target import Target, page_of_record, short_reason, sync_command

_log = logging.getLogger(__name__)

_POINTS_PER_REQUEST = 500  # or the rest of the line more; a slow server takes so many within the time limit
_FILES_SECONDS = 60.0  # before files that were refused are sent again


class Tracker:
    """Logs a run to MLflow from a daemon thread. No method raises, and only `close` waits."""

    def __init__(
        self,
        run_dir: Path,
        record: RunRecord,
        on_page: Callable[[str], None] | None = None,
        seconds_between_sends: float = 5.0,
    ) -> None:
        """Continue the MLflow run of `run_dir` if there is one in this experiment, else plan a new one.

        Args:
            record: a new one, with address and experiment as the config gives them. The address OFFLINE sends nothing,
                and keeps all for `sync`.
            on_page: called once, from the thread, with the page of the run in MLflow.
            seconds_between_sends: a request costs milliseconds of processor time. After failures the thread waits up
                to 12 times as long.
        """
        target = Target.of_training(record.uri, record.experiment)
        record.uri, record.experiment = redact(target.uri), target.experiment
        try:
            if earlier := RunRecord.load(run_dir):
                record.continue_from(earlier)
                if earlier.uri != record.uri:
                    _log.warning(
                        "This run was tracked at %s before. From now on it is tracked at %s.", earlier.uri, record.uri
                    )
        except (UserError, OSError) as error:
            _log.warning("A new MLflow run is started: %s", error)
        self._offline = target.uri == OFFLINE
        self._command = sync_command(run_dir, target.uri)
        self._sender = Sender(run_dir, target, record)
        self._on_page, self._seconds = on_page, seconds_between_sends
        self._stop = threading.Event()
        self._sent_all = False
        self._thread = threading.Thread(target=self._run, name="mlflow-tracker", daemon=True)
        self._record()

    def start(self) -> None:
        """Begin to send, unless it has."""
        if not self._offline and self._thread.ident is None:
            self._thread.start()

    def log_artifact(self, path: Path) -> None:
        """Queue a file that lies directly in the run folder."""
        queue = self._sender.record.artifacts
        self._record(artifacts=[*(name for name in queue if name != path.name), path.name])

    def close(self, timeout_seconds: float, status: str, outcome: str | None = None) -> None:
        """Send the rest and set the run's state to `status` (FINISHED, FAILED or KILLED), in at most `timeout_seconds`.

        outcome: a tag of the run, such as "diverged".

        Close the journal first. If data remain, a warning names the command that sends them.
        """
        tags = self._sender.record.tags | ({"outcome": outcome} if outcome else {})
        self._record(status=status, end_time=int(time.time() * 1000), tags=tags)
        self.start()  # of a run that made no step
        self._stop.set()
        if self._offline:
            command = f"{self._command} --uri ADDRESS"
            _log.warning("Nothing was sent to MLflow (track.uri: none). Send it with: %s", command)
            return
        self._thread.join(timeout_seconds)
        if not self._sent_all or self._sender.files_problem:
            what = "files" if self._sent_all else "metrics"
            _log.warning("Some %s were not sent to MLflow. Send them with: %s", what, self._command)

    def _record(self, **changes: Any) -> None:
        try:
            self._sender.update(**changes)
        except OSError as error:
            _log.warning("The record of MLflow cannot be written; tracking continues from memory: %s", error)

    def _run(self) -> None:
        wait, stopping = self._seconds, False
        while not self._sent_all:
            try:
                self._sender.send(retry_files=stopping)
                self._sent_all = stopping
                if wait > self._seconds:
                    _log.warning("MLflow is back; metrics are sent again.")
                wait = self._seconds
                if self._on_page and (page := page_of_record(self._sender.record)):
                    self._on_page(page)
                    self._on_page = None
            except Exception as error:
                if wait == self._seconds:
                    _log.warning(
                        "%s Training continues; metrics are kept in journal.jsonl and sent later.",
                        _what_failed(self._sender.record.uri, error),
                    )
                if stopping:
                    return
                wait = min(2 * wait, 12 * self._seconds)
            stopping = self._stop.wait(wait)


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
        uri, experiment, trust_folder: as in Target.of_run.
        on_progress: called with the bytes of the journal that have been sent so far.

    Raises UserError if there is no address, or MLflow does not take the data.
    """
    record, target = RunRecord.require(run_dir), Target.of_run(run_dir, uri, experiment, trust_folder)
    if target.experiment != record.experiment:
        record = replace(record, experiment=target.experiment, key=new_key(), run_id=None)
    record.uri = redact(target.uri)
    sender = Sender(run_dir, target, record, on_progress)
    try:
        sent = sender.send()
    except Exception as error:
        raise UserError(_what_failed(record.uri, error)) from error
    if sender.files_problem:
        raise UserError(f"MLflow has the metrics of {run_dir}, but takes no files ({sender.files_problem}).")
    return sent


def _what_failed(uri: str, error: Exception) -> str:
    """A sentence on the failure of a request."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.filename:  # of the run folder
        return unforeseen(error)
    reason = short_reason(error)
    return f"Cannot {'use' if reason.startswith('HTTP 4') else 'reach'} MLflow at {uri} ({reason})."


class Sender:
    """Sends a run folder. `send` belongs to one thread; any method may raise.

    Args:
        on_progress: called with the bytes of the journal that have been sent so far, after each request.
    """

    def __init__(
        self, run_dir: Path, target: Target, record: RunRecord, on_progress: Callable[[int], None] | None = None
    ):
        self.record = record
        self._folder, self._target = RunFolder(run_dir), target
        self._on_progress = on_progress or (lambda offset: None)
        self._lock = threading.Lock()  # the trainer queues artifacts while the thread records its progress
        self._run: MlflowRun | None = None
        self._sent = SentSteps()
        self.files_problem: str | None = None
        """Why the files that wait were not sent; metrics are sent without them."""
        self._files_due, self._has_warned = 0.0, False

    def send(self, retry_files: bool = True) -> int:
        """Send all that waits, and return the number of points. After an error it connects again.

        Args:
            retry_files: send files that were refused, also within a minute of the last try.
        """
        run, self._run = self._run or self._connect(), None
        points = self._send_journal(run)
        if self.record.status != "RUNNING":
            if outcome := self.record.tags.get("outcome"):
                run.client.set_tag(run.id, "outcome", outcome)
            run.client.set_terminated(run.id, self.record.status, self.record.end_time)
        self._run = run
        if self.files_problem and points and not self._has_warned:  # it takes metrics, so this is no outage
            _log.warning("MLflow takes no files (%s). Metrics are sent without them.", self.files_problem)
            self._has_warned = True
        if retry_files or time.monotonic() >= self._files_due:
            self._try_artifacts(run)
        return points

    def _try_artifacts(self, run: MlflowRun) -> None:
        """Send the files. Their store may be another server or folder than MLflow's, so it may fail alone."""
        self.files_problem = None
        try:
            self._send_artifacts(run)
        except Exception as error:
            self.files_problem, self._files_due = short_reason(error), time.monotonic() + _FILES_SECONDS

    def update(self, **changes: Any) -> None:
        """Change the record, in memory first and then on disk."""
        with self._lock:
            for name, value in changes.items():
                setattr(self.record, name, value)
            write_json(self._folder.mlflow_run, asdict(self.record))

    def _connect(self) -> MlflowRun:
        run = MlflowRun.open(self._target, self.record)
        self.files_problem, self._files_due = None, 0.0  # an outage may have refused them
        if run.id != self.record.run_id:
            self.update(run_id=run.id, experiment_id=run.experiment_id, offset=0, step=-1, line="")
        elif run.experiment_id != self.record.experiment_id:
            self.update(experiment_id=run.experiment_id)
        self._sent, end, digest = SentSteps(), 0, ""
        for end, entry in self._entries(0, self.record.offset):
            self._sent.take_new(entry)
            digest = entry.digest if end >= self.record.offset and self.record.line else ""
        if (end, digest) != (self.record.offset, self.record.line) or self.record.lost:
            # The end of the journal was lost, as after a power failure. Later lines may repeat its steps.
            self._sent = SentSteps()
            for name, steps in run.sent_steps().items():
                for step in steps:
                    self._sent.add(step, [name])
            self.update(offset=0, step=-1, line="", lost=True)
        return run

    def _entries(self, start: int, stop: float = math.inf) -> Iterator[tuple[int, Entry]]:
        """(end offset, entry) of the journal's lines between two byte offsets."""
        with contextlib.suppress(FileNotFoundError):  # nothing was measured yet
            lines = JournalReader(self._folder.journal).lines(start, stop)
            yield from ((end, entry) for end, entry in lines if entry)

    def _send_journal(self, run: MlflowRun) -> int:
        sent = 0
        points: list[Point] = []
        last: tuple[int, Entry] | None = None
        for last in self._entries(self.record.offset):
            points += self._sent.take_new(last[1])
            if len(points) >= _POINTS_PER_REQUEST:
                sent += self._send_points(run, points, *last)
                points, last = [], None
        return sent + (self._send_points(run, points, *last) if last else 0)

    def _send_points(self, run: MlflowRun, points: list[Point], end: int, last: Entry) -> int:
        """Send the points up to the entry `last`, which ends at byte `end`, then record that; returns their number."""
        run.log_points(points)
        self.update(offset=end, step=last.step, line=last.digest)
        self._on_progress(end)
        return len(points)

    def _send_artifacts(self, run: MlflowRun) -> None:
        """Upload the queued files. Only regular files directly in the run folder are sent, and no links."""
        for name in list(self.record.artifacts):
            try:
                if Path(name).name != name:
                    raise PermissionError(f"{name!r} is not the name of a file")
                file = open_plain(self._folder.path / name, follow=False)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) and error.strerror else error
                _log.warning(
                    "%.100r is not sent to MLflow: it is no regular file in %s (%s)", name, self._folder.path, why
                )
            else:
                with file, tempfile.TemporaryDirectory() as folder:  # MLflow opens files by path
                    copy = Path(folder, name)
                    copy.write_bytes(file.read())
                    run.client.log_artifact(run.id, str(copy))
            self.update(artifacts=[other for other in self.record.artifacts if other != name])
