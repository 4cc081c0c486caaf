"""Runs on an MLflow server: find, create, write. Everything that Maskwright measures reaches MLflow through here."""

import contextlib
import hashlib
import logging
import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.common.errors import UserError
from data_prep.common.urls import redact
from pretrain.config import OFFLINE
from pretrain.export import model_folder
from pretrain.tracking.journal_points import MOST_NAMES, Point, metric_name
from pretrain.tracking.model_package import LONGEST_NOTE, MLFLOW_NOTE
from pretrain.tracking.run_record import RunRecord
from pretrain.tracking.tracking_target import Target, short_reason, training_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

_log = logging.getLogger(__name__)

MODEL_TAG = "maskwright.model"  # of a logged model: the run and the checkpoint that it was made of
_KEY_TAG = "maskwright.key"
_STUDY_TAG = "maskwright.study"
_PARENT_TAG = "mlflow.parentRunId"


@dataclass(frozen=True)
class TrackedResults:
    """The content of one MLflow run.

    key: letters and digits that find the run again. parent: the key of the run that this one belongs to, if that is in
    the same experiment. grows: later results of the same key add points; else the run is sent once.
    model: the measured model, a run folder or an export in one. Its training run, in the same experiment, becomes the
    parent, and its logged model gets the points too.
    """

    name: str
    key: str
    params: dict[str, str]
    points: list[Point]
    parent: str | None = None
    grows: bool = False
    model: Path | None = None


def send_results(target: Target, results: Iterable[TrackedResults]) -> None:
    """Send results in turn; OFFLINE sends nothing. A failure becomes a warning, and the rest is not sent."""
    if target.uri == OFFLINE:
        return
    try:
        for result in results:
            _send(target, result)
    except Exception as error:
        _log.warning("MLflow at %s did not take the results (%s).", redact(target.uri), short_reason(error))


def _send(target: Target, results: TrackedResults) -> None:
    sent = MlflowRun.find(target, results.key)
    if sent and sent.run.info.status == "FINISHED" and not results.grows:
        return
    trained = training_of(results.model) if results.model else None
    parent_key = trained.key if trained else results.parent
    parent = MlflowRun.find(target, parent_key) if parent_key else None
    record = RunRecord(redact(target.uri), target.experiment, results.name, results.params, tags={}, key=results.key)
    record.parent = parent.id if parent else None
    run = MlflowRun.open(target, record)
    run.log_points(_few_names(results), _logged_model(parent, results.model) if parent and results.model else None)
    ended = max((point.time for point in results.points), default=time.time())
    run.client.set_terminated(run.id, "FINISHED", int(1000 * ended))


def _logged_model(trained: "MlflowRun", model: Path) -> str | None:
    """The id of the training run's logged model of the same checkpoint as `model`; None if it was not logged."""
    with contextlib.suppress(UserError, OSError):
        name = model_folder(model).name
        return next((str(model.model_id) for model in trained.ready_models() if model.name == name), None)
    return None


def _few_names(results: TrackedResults) -> list[Point]:
    """The points of at most MOST_NAMES metrics: totals before parts, whose names have more slashes."""
    names = sorted(dict.fromkeys(point.name for point in results.points), key=lambda name: name.count("/"))
    if len(names) > MOST_NAMES:
        _log.warning("%s has %d metrics; MLflow gets %d, totals before parts.", results.name, len(names), MOST_NAMES)
    kept = set(names[:MOST_NAMES])
    return [point for point in results.points if point.name in kept]


@dataclass(frozen=True)
class MlflowRun:
    """A run on an MLflow server, and the client that writes to it.

    run: as MLflow had it when it was found. key: its tag that Maskwright finds it by.
    """

    client: "MlflowClient"
    run: "Run"
    key: str

    @classmethod
    def open(cls, target: Target, record: RunRecord) -> "MlflowRun":
        """The record's run, which is created if the server does not have it; it gets parameters, tags and parent.

        It is found by its key, also if the process that created it died before it recorded the run's id.
        """
        client, experiment_id = target.connect()
        run = _find(client, experiment_id, record.key)
        if run is None:
            tags = {**record.tags, _KEY_TAG: record.key}
            if record.description:  # not later: users edit it
                tags[MLFLOW_NOTE] = record.description[:LONGEST_NOTE]
            run = client.create_run(experiment_id, tags=tags, run_name=record.run_name)
        elif record.status == "RUNNING" != run.info.status:
            client.update_run(run.info.run_id, status="RUNNING")
        _send_params_and_tags(client, run, record)
        if record.parent:
            _adopt(client, experiment_id, run.info.run_id, record.parent)
        opened = cls(client, run, record.key)
        opened.log_inputs(record.inputs)
        return opened

    @classmethod
    def find(cls, target: Target, key: str) -> "MlflowRun | None":
        """The run with this key; None if the server does not have it, or it was deleted."""
        client, experiment_id = target.connect()
        run = _find(client, experiment_id, key)
        return cls(client, run, key) if run else None

    @classmethod
    def of_folder(cls, run_dir: Path, uri: str | None = None, trust_folder: bool = False) -> "MlflowRun":
        """The MLflow run of a run folder; the arguments are as in Target.of_run.

        Raises UserError if the server does not have it. MLflow's and the network's own errors.
        """
        target = Target.of_run(run_dir, uri, trust_folder=trust_folder)
        run = cls.find(target, RunRecord.require(run_dir).key)
        if run is None:
            address = redact(target.uri)
            raise UserError(f"{run_dir} is not in MLflow at {address} yet. Run: maskwright track sync {run_dir}")
        return run

    @property
    def id(self) -> str:
        return str(self.run.info.run_id)

    @property
    def experiment_id(self) -> str:
        return str(self.run.info.experiment_id)

    def logged_models(self) -> list["LoggedModel"]:
        """The run's logged models that Maskwright made, also those whose files have not all arrived."""
        import mlflow

        mlflow.set_tracking_uri(self.client.tracking_uri)
        models = mlflow.search_logged_models([self.experiment_id], f"source_run_id = '{self.id}'", output_format="list")
        return [model for model in models if MODEL_TAG in model.tags]

    def ready_models(self) -> list["LoggedModel"]:
        """The run's logged models whose files have all arrived; of a step that was trained again, the later one."""
        ready = [model for model in self.logged_models() if str(model.status) == "READY"]
        return [*{model.name: model for model in sorted(ready, key=lambda model: model.creation_timestamp)}.values()]

    def sent_steps(self) -> dict[str, set[int]]:
        """The steps at which MLflow has each metric."""
        names = self.client.get_run(self.id).data.metrics
        return {name: {point.step for point in self.client.get_metric_history(self.id, name)} for name in names}

    def log_points(
        self,
        points: Sequence[Point],
        model_id: str | None = None,
        dataset: tuple[str, str] | tuple[None, None] = (None, None),
    ) -> None:
        """Give points to the run, at most 1,000 a request. MLflow keeps one row of a point that it gets twice.

        Args:
            model_id: of the logged model that the points belong to as well.
            dataset: name and digest of the measured data set.
        """
        from mlflow.entities import Metric

        metrics = []
        for point in points:
            of_model = model_id if math.isfinite(point.value) else None  # it would have 0 for NaN
            place = int(point.time * 1000), point.step, of_model
            metrics.append(Metric(metric_name(point.name), point.value, *place, *dataset))
        self.client.log_batch(self.id, metrics=metrics)

    def log_inputs(self, inputs: Iterable[dict[str, str]]) -> None:
        """Log data sets, as `describe_input` gives them; MLflow keeps one of each digest."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        datasets = [
            DatasetInput(
                Dataset(data["name"], data["digest"], "local", data["source"], data["schema"], data["profile"]),
                [InputTag("mlflow.data.context", data["context"])],
            )
            for data in inputs
        ]
        if datasets:
            self.client.log_inputs(self.id, datasets=datasets)


def _find(client: "MlflowClient", experiment_id: str, key: str) -> "Run | None":
    runs = _tagged(client, experiment_id, _KEY_TAG, key)
    return runs[0] if runs else None


def _tagged(client: "MlflowClient", experiment_id: str, tag: str, value: str) -> list["Run"]:
    """The experiment's runs with this tag, without deleted ones. Raises ValueError for an invalid key."""
    if not value.isalnum():  # a foreign run folder may hold anything, and it becomes part of a filter
        raise ValueError(f"{value[:50]!r} is not a key of a run")
    runs: list[Run] = []
    token = None
    while token != "":
        page = client.search_runs([experiment_id], filter_string=f"tags.`{tag}` = '{value}'", page_token=token)
        runs, token = [*runs, *page], page.token or ""
    return runs


def _send_params_and_tags(client: "MlflowClient", run: "Run", record: RunRecord) -> None:
    """MLflow refuses to change a parameter: one that a resumed run changed becomes the tag `resumed/NAME`."""
    from mlflow.entities import Param, RunTag

    known = run.data.params
    params = {name: value for name, value in record.params.items() if name not in known}
    changed = {f"resumed/{n}": v for n, v in record.params.items() if n in known and known[n] != v}
    tags = {**record.tags, "restarts": str(record.restarts), **changed}
    client.log_batch(
        run.info.run_id,
        params=[Param(name, value) for name, value in params.items()],
        tags=[RunTag(name, value) for name, value in tags.items()],
    )


def _adopt(client: "MlflowClient", experiment_id: str, run_id: str, parent: str) -> None:
    """Make the run a child of the one whose id is `parent`, or else of the one that is called so."""
    if re.fullmatch(r"[0-9a-f]{32}", parent) and _exists(client, parent):
        client.set_tag(run_id, _PARENT_TAG, parent)
        return
    study = hashlib.sha256(parent.encode()).hexdigest()[:32]
    while True:
        parents = sorted(run.info.run_id for run in _tagged(client, experiment_id, _STUDY_TAG, study))
        if not parents:
            made = client.create_run(experiment_id, tags={_STUDY_TAG: study}, run_name=parent)
            client.set_terminated(made.info.run_id)  # it only holds its children
            continue
        # MLflow cannot create a run only if it is missing: children that begin together may create several parents.
        # Each keeps the first by id, and searches again after the move, as another child may have done the same.
        chosen, others = parents[0], parents[1:]
        _merge(client, experiment_id, chosen, others)
        client.set_tag(run_id, _PARENT_TAG, chosen)
        if not others and [run.info.run_id for run in _tagged(client, experiment_id, _STUDY_TAG, study)] == [chosen]:
            return


def _merge(client: "MlflowClient", experiment_id: str, chosen: str, others: Iterable[str]) -> None:
    for other in others:
        for child in _tagged(client, experiment_id, _PARENT_TAG, other):
            client.set_tag(child.info.run_id, _PARENT_TAG, chosen)
        client.delete_run(other)


def _exists(client: "MlflowClient", run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        return bool(client.get_run(run_id).info.lifecycle_stage == "active")
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        _log.warning("MLflow has no run %s: track.parent is taken for a name", run_id)
        return False


@contextlib.contextmanager
def short_errors(action: str) -> Iterator[None]:
    """Turn the many exceptions of MLflow and the network into a UserError that says what failed."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{action} failed: {short_reason(error)}") from error
