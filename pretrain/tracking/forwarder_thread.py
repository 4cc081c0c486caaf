"""The background thread that tracks a run while it trains."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from data_prep.errors import UserError
from data_prep.urls import redact
from pretrain.config.mlflow_address import OFFLINE
from pretrain.run import RunFolder
from pretrain.tracking.journal_forwarder import Sender
from pretrain.tracking.mlflow_runs import short_reason
from pretrain.tracking.run_record import RECORD_NAME, RunRecord, load_record
from pretrain.tracking.tracking_target import resolve_target, run_page, sync_command

_log = logging.getLogger(__name__)

SECONDS_BETWEEN_SENDS = 5.0  # a request costs milliseconds of processor time
_LONGEST_BACK_OFF_SECONDS = 60.0


class Tracker:
    """Logs a run to MLflow from a daemon thread. No method raises, and only `close` waits."""

    def __init__(self, run_dir: Path, record: RunRecord, on_page: Callable[[str], None] | None = None) -> None:
        """Continue the MLflow run of `run_dir` if there is one in this experiment, else plan a new one.

        Args:
            record: a new one, with address and experiment as the config gives them. The address OFFLINE sends nothing,
                and keeps all for `sync`.
            on_page: called once, from the thread, with the page of the run in MLflow.
        """
        target = resolve_target(record.uri, record.experiment)
        record.uri, record.experiment = redact(target.uri), target.experiment
        try:
            if earlier := load_record(run_dir):
                record.continue_from(earlier)
                if earlier.uri != record.uri:
                    _log.warning(
                        "This run was tracked at %s before. From now on it is tracked at %s.", earlier.uri, record.uri
                    )
        except (UserError, OSError) as error:
            _log.warning("A new MLflow run is started: %s", error)
        self._run_dir = run_dir
        self._offline = target.uri == OFFLINE
        self._command = sync_command(run_dir, target.uri)
        self._sender = Sender(run_dir, target, record)
        self._on_page = on_page
        self._stop = threading.Event()
        self._sent_all = False
        self._thread = threading.Thread(target=self._run, name="mlflow-tracker", daemon=True)
        self._remember(self._sender.update)

    def start(self) -> None:
        """Begin to send, unless it has."""
        if not self._offline and self._thread.ident is None:
            self._thread.start()

    def log_artifact(self, path: Path) -> None:
        """Queue a file that lies directly in the run folder."""
        self._remember(lambda: self._sender.queue_artifact(path.name))

    def close(self, timeout_seconds: float, status: str) -> None:
        """Send the rest and set the run's state to `status` (FINISHED, FAILED or KILLED), in at most `timeout_seconds`.

        Close the journal first. If data remain, a warning names the command that sends them.
        """
        self._remember(lambda: self._sender.end(status))
        self.start()  # of a run that made no step
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        if self._offline:
            command = f"{self._command} --uri ADDRESS"
            _log.warning("Nothing was sent to MLflow (track.uri: none). Send it with: %s", command)
        elif not self._sent_all:
            _log.warning("Some metrics were not sent to MLflow. Send them with: %s", self._command)

    def _tell_page(self) -> None:
        if self._on_page and (page := run_page(self._sender.record)):
            self._on_page(page)
            self._on_page = None

    def _remember(self, change: Callable[[], None]) -> None:
        try:
            change()
        except OSError as error:
            _log.warning("%s cannot be written; tracking continues from memory: %s", self._run_dir / RECORD_NAME, error)

    def _run(self) -> None:
        back_off, down = 1.0, False
        stopping = False
        while not self._sent_all:
            try:
                self._sender.send()
                self._sent_all = stopping
                self._tell_page()
                if down:
                    _log.warning("MLflow is back; metrics are sent again.")
                back_off, down = 1.0, False
            except Exception as error:
                if not down:
                    _log.warning(
                        "Cannot reach MLflow at %s (%s). Training continues; metrics are kept in %s and sent later.",
                        self._sender.record.uri,
                        short_reason(error),
                        RunFolder(self._run_dir).journal.name,
                    )
                if stopping:
                    return
                back_off, down = min(2 * back_off, _LONGEST_BACK_OFF_SECONDS), True
            stopping = self._stop.wait(back_off if down else SECONDS_BETWEEN_SENDS)
