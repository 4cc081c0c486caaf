"""Forwards a run's journal to MLflow from a background thread that training never waits for.

The journal on disk is the queue, and RUN/mlflow_run.json remembers how far it has been sent, so nothing is lost when
the server is away or the process is killed: the thread, the next run or `maskwright track sync` goes on from there.

What is sent is a pure function of the journal: of each (metric, step) the first line that holds it, with that line's
time. MLflow's stores keep one row for one (run, metric, step, time, value), so sending a line twice adds nothing, and
a step that a resumed run repeats is not sent again: MLflow keeps the first attempt's numbers, the journal has both.
"""

import contextlib
import fcntl
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson

from data_prep.errors import UserError
from data_prep.files import write_json
from pretrain.journal import Entry, parse_entry
from pretrain.redact import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_log = logging.getLogger(__name__)

JOURNAL_NAME = "journal.jsonl"
RECORD_NAME = "mlflow_run.json"
KEY_TAG = "maskwright.key"
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # MLflow's pages for training, not agents
_SECONDS_BETWEEN_SENDS = 2.0
_LONGEST_BACK_OFF_SECONDS = 60.0
_METRICS_PER_BATCH = 900  # and the rest of the line that reached it; MLflow takes 1,000 in one request

# Our own back-off replaces MLflow's minutes of retries inside one call. Printed addresses may hold a password.
_ENVIRONMENT_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "300",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def resolve_target(uri: str, experiment: str) -> tuple[str, str]:
    """Tracking address and experiment name; MLflow's environment variables win over the arguments.

    A relative SQLite path is made absolute, so that `track sync` finds the file from any folder.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or uri
    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment
    if (path := _sqlite_path(uri)) is not None:
        uri = f"sqlite:///{path}{uri[len(uri.partition('?')[0]) :]}"
    return uri, experiment


def prepare_environment() -> None:
    """Settings of MLflow that the user has not made. DeepSpeed may have imported it, and so read its logging level."""
    for name, value in _ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("mlflow").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"].upper())


def _new_key() -> str:
    return uuid.uuid4().hex


@dataclass
class RunRecord:
    """RUN/mlflow_run.json: where the run is tracked, how far its journal has been sent, what else waits."""

    uri: str  # redacted
    experiment: str
    run_name: str
    params: dict[str, str]
    tags: dict[str, str]
    key: str = field(default_factory=_new_key)  # finds the run again where its id was not recorded
    run_id: str | None = None
    offset: int = 0  # bytes of the journal that have been sent
    step: int = -1  # of the last line sent
    status: str = "RUNNING"
    end_time: int | None = None  # Unix milliseconds
    artifacts: list[str] = field(default_factory=list)  # still to be uploaded; relative to RUN where inside it


def load_record(run_dir: Path) -> RunRecord | None:
    """The record of a run folder; None where there is none. Raises UserError where it cannot be understood."""
    path = run_dir / RECORD_NAME
    try:
        return RunRecord(**orjson.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}): delete it to log this run to MLflow anew") from error


class Tracker:
    """Logs a run to MLflow from a daemon thread. No method raises, and only `close` waits."""

    def __init__(
        self,
        run_dir: Path,
        uri: str,
        experiment: str,
        run_name: str,
        params: dict[str, str],
        tags: dict[str, str],
        artifacts: list[Path],
    ) -> None:
        """Continue the MLflow run of `run_dir` where there is one in this experiment, else plan a new one."""
        uri, experiment = resolve_target(uri, experiment)
        record = RunRecord(redact(uri), experiment, run_name, params, tags)
        try:
            earlier = load_record(run_dir)
        except (UserError, OSError) as error:
            _log.warning("A new MLflow run is started: %s", error)
            earlier = None
        if earlier and earlier.experiment == experiment:
            record.key, record.run_id = earlier.key, earlier.run_id
            record.offset, record.step, record.artifacts = earlier.offset, earlier.step, earlier.artifacts
        self._run_dir = run_dir
        self._sender = _Sender(run_dir, uri, record)
        self._stop = threading.Event()
        self._sent_all = False
        self._thread = threading.Thread(target=self._run, name="mlflow-tracker", daemon=True)
        self._remember(self._sender.update)
        for path in artifacts:
            self.log_artifact(path)

    def start(self) -> None:
        self._thread.start()

    def log_artifact(self, path: Path) -> None:
        """Queue a file or a folder; its place in MLflow is its place in the run folder."""
        self._remember(lambda: self._sender.queue_artifact(path))

    def close(self, timeout_seconds: float, status: str) -> None:
        """Send the rest and set the run's state to `status` (FINISHED, FAILED or KILLED), in at most `timeout_seconds`.

        Close the journal first. What is left then is named in a warning together with the command that sends it.
        """
        self._remember(lambda: self._sender.end(status))
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        if not self._sent_all:
            _log.warning("MLflow has not got everything; send the rest with: maskwright track sync %s", self._run_dir)

    def _remember(self, change: Callable[[], None]) -> None:
        try:
            change()
        except OSError as error:
            _log.warning("%s cannot be written, tracking goes on from memory: %s", self._run_dir / RECORD_NAME, error)

    def _run(self) -> None:
        back_off, down = 1.0, False
        stopping = False
        while not self._sent_all:
            try:
                self._sender.send()
                self._sent_all = stopping
                if down:
                    _log.warning("MLflow takes the data again")
                back_off, down = 1.0, False
            except Exception as error:
                if not down:
                    _log.warning("MLflow is away, training goes on and the data are kept: %s", one_line(error))
                if stopping:
                    return
                back_off, down = min(2 * back_off, _LONGEST_BACK_OFF_SECONDS), True
            stopping = self._stop.wait(back_off if down else _SECONDS_BETWEEN_SENDS)


def sync(run_dir: Path) -> int:
    """Send what MLflow lacks of a run, and return the number of points (metric values) sent.

    May be repeated, and run beside the training itself, without doubling anything. Raises UserError.
    """
    record = load_record(run_dir)
    if record is None:
        raise UserError(f"{run_dir} has no {RECORD_NAME}: give the folder of a run that was trained with tracking on")
    uri, experiment = resolve_target(record.uri, record.experiment)
    if "***" in uri:
        raise UserError(f"the password of {uri} is not kept in {run_dir / RECORD_NAME}: set MLFLOW_TRACKING_URI")
    if experiment != record.experiment:
        record = replace(record, experiment=experiment, key=_new_key(), run_id=None)
    record.uri = redact(uri)
    try:
        return _Sender(run_dir, uri, record).send()
    except Exception as error:
        raise UserError(f"MLflow at {record.uri} does not take the data of {run_dir}: {one_line(error)}") from error


class _Sender:
    """Brings MLflow up to what the run folder holds. `send` belongs to one thread; any method may raise."""

    def __init__(self, run_dir: Path, uri: str, record: RunRecord) -> None:
        self.record = record
        self._run_dir = run_dir
        self._uri = uri
        self._lock = threading.Lock()  # the trainer queues artifacts while the thread records its progress
        self._client: MlflowClient | None = None
        self._run_id = ""  # known once connected
        self._sent = _SentSteps()

    def queue_artifact(self, path: Path) -> None:
        path = path.resolve()
        inside = path.is_relative_to(self._run_dir.resolve())
        name = str(path.relative_to(self._run_dir.resolve()) if inside else path)
        self.update(artifacts=[*(other for other in self.record.artifacts if other != name), name])

    def end(self, status: str) -> None:
        self.update(status=status, end_time=int(time.time() * 1000))

    def send(self) -> int:
        """Send all that waits; the number of points. After an error the connection is made anew."""
        client, self._client = self._client or self._connect(), None
        points = self._send_journal(client)
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
        prepare_environment()
        from mlflow import MlflowClient

        with _alone(_sqlite_path(self._uri)):
            client = MlflowClient(tracking_uri=self._uri)
            experiment_id = self._experiment_id(client)
        run = self._find_run(client, experiment_id)
        if run is None:
            tags = {**self.record.tags, KEY_TAG: self.record.key}
            run = client.create_run(experiment_id, tags=tags, run_name=self.record.run_name)
        elif self.record.status == "RUNNING" != run.info.status:
            client.update_run(run.info.run_id, status="RUNNING")
        self._run_id = run.info.run_id
        if self._run_id != self.record.run_id:
            self.update(run_id=self._run_id, offset=0, step=-1)
        self._send_params_and_tags(client, run)
        self._sent = _SentSteps()
        for _, entry in _lines(self._journal, 0, self.record.offset):
            self._sent.take_new(entry)
        return client

    def _experiment_id(self, client: "MlflowClient") -> str:
        name = self.record.experiment
        if experiment := client.get_experiment_by_name(name):
            return experiment.experiment_id
        # MLflow's default for SQLite is `mlruns` in the working folder of whoever comes first.
        path = _sqlite_path(self._uri)
        location = (path.parent / "mlruns" / quote(name, safe="")).as_uri() if path else None
        try:
            return client.create_experiment(name, artifact_location=location, tags=_EXPERIMENT_TAGS)
        except Exception:
            if experiment := client.get_experiment_by_name(name):  # another run was faster
                return experiment.experiment_id
            raise

    def _find_run(self, client: "MlflowClient", experiment_id: str) -> "Run | None":
        """The run on this server, by its key: a `create_run` whose answer was lost is found too."""
        runs = client.search_runs([experiment_id], filter_string=f"tags.`{KEY_TAG}` = '{self.record.key}'")
        return runs[0] if runs else None

    def _send_params_and_tags(self, client: "MlflowClient", run: "Run") -> None:
        """MLflow refuses to change a parameter: one that a resumed run changed becomes the tag `resumed/NAME`."""
        from mlflow.entities import Param, RunTag

        known = run.data.params
        params = {name: value for name, value in self.record.params.items() if name not in known}
        changed = {f"resumed/{n}": v for n, v in self.record.params.items() if n in known and known[n] != v}
        client.log_batch(
            run.info.run_id,
            params=[Param(name, value) for name, value in params.items()],
            tags=[RunTag(name, value) for name, value in {**self.record.tags, **changed}.items()],
        )

    @property
    def _journal(self) -> Path:
        return self._run_dir / JOURNAL_NAME

    def _send_journal(self, client: "MlflowClient") -> int:
        from mlflow.entities import Metric

        points = 0
        metrics: list[Metric] = []
        last = self.record.offset, self.record.step
        for end, entry in _lines(self._journal, self.record.offset, None):
            last = end, entry.step
            for name, value in self._sent.take_new(entry).items():
                metrics.append(Metric(name, value, int(entry.time * 1000), entry.step))
            if len(metrics) >= _METRICS_PER_BATCH:
                points += self._send_batch(client, metrics, *last)
                metrics = []
        return points + self._send_batch(client, metrics, *last)

    def _send_batch(self, client: "MlflowClient", metrics: list[Any], end: int, step: int) -> int:
        """Send the metrics of the journal up to byte `end`, then record that; returns their number."""
        if end > self.record.offset:
            client.log_batch(self._run_id, metrics=metrics)
            self.update(offset=end, step=step)
        return len(metrics)

    def _send_artifacts(self, client: "MlflowClient") -> None:
        for name in list(self.record.artifacts):
            path = self._run_dir / name
            place = Path(path.name if Path(name).is_absolute() else name)
            if path.is_dir():
                client.log_artifacts(self._run_id, str(path), str(place))
            elif path.is_file():
                client.log_artifact(self._run_id, str(path), str(place.parent) if len(place.parts) > 1 else None)
            else:
                _log.warning("%s is gone and cannot be logged to MLflow", path)
            self.update(artifacts=[other for other in self.record.artifacts if other != name])


class _SentSteps:
    """The (metric, step) pairs already sent; one byte a step and metric: 20 MB at a million steps of 20 metrics."""

    def __init__(self) -> None:
        self._seen: dict[str, bytearray] = {}

    def take_new(self, entry: Entry) -> dict[str, float]:
        """The metrics of `entry` that were not there before at its step; from now on they were."""
        new = {}
        for name, value in entry.metrics.items():
            seen = self._seen.setdefault(name, bytearray())
            if len(seen) <= entry.step:
                seen.extend(bytes(entry.step + 1 - len(seen)))
            if not seen[entry.step]:
                seen[entry.step] = 1
                new[name] = value
        return new


def _lines(journal: Path, start: int, stop: int | None) -> Iterator[tuple[int, Entry]]:
    """(end offset, entry) of the whole lines between two byte offsets; the line being written is left for later."""
    try:
        file = open(journal, "rb")  # noqa: SIM115 - closed below; the `try` is about opening alone
    except FileNotFoundError:  # nothing measured yet
        return
    with file:
        file.seek(start)
        end = start
        while (stop is None or end < stop) and (line := file.readline()).endswith(b"\n"):
            end += len(line)
            if entry := parse_entry(line):
                yield end, entry


def _sqlite_path(uri: str) -> Path | None:
    """The absolute path of a SQLite file's address; None for any other address."""
    match = re.fullmatch(r"sqlite:///([^?]+)(\?.*)?", uri)
    return None if match is None or match[1] == ":memory:" else Path(match[1]).absolute()


@contextlib.contextmanager
def _alone(path: Path | None) -> Iterator[None]:
    """Wait until no other run is here: two that make the tables of a SQLite file at once spoil it for good."""
    with contextlib.ExitStack() as stack:
        if path is not None:
            with contextlib.suppress(OSError):  # where no file can be made or locked, MLflow has the word
                file = stack.enter_context(open(f"{path}.lock", "a"))
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def one_line(error: Exception) -> str:
    text = str(error).strip()
    return redact(text.splitlines()[0][:400] if text else type(error).__name__)
