"""A fine-tuning in MLflow: a run with mean and deviation, and below it one for each seed.

All that is sent is in the report, so that it may be sent again: MLflow keeps one row of a value that comes twice.
"""

import logging
from typing import TYPE_CHECKING

from data_prep.remote import redact
from pretrain.finetuning.report import Report, SeedResult
from pretrain.tracking import OFFLINE, RunRecord
from pretrain.tracking.points import metric_name
from pretrain.tracking.runs import open_run
from pretrain.tracking.sender import short_reason
from pretrain.tracking.target import connect

if TYPE_CHECKING:
    from mlflow import MlflowClient

_log = logging.getLogger(__name__)


class SeedTracker:
    """Sends a report's seeds as they are finished; what fails is sent with the next one.

    Args:
        uri: OFFLINE sends nothing.
        name: of the run in MLflow.
    """

    def __init__(self, report: Report, uri: str, experiment: str, name: str, params: dict[str, str]) -> None:
        self._report, self._uri, self._experiment, self._name, self._params = report, uri, experiment, name, params
        self._sent: set[int] = set()

    def send(self) -> None:
        """Send the seeds that have not been sent; what goes wrong becomes a warning."""
        if self._uri == OFFLINE or not self._report.results:
            return
        try:
            self._send()
        except Exception as error:
            _log.warning("MLflow at %s did not take the results (%s).", redact(self._uri), short_reason(error))

    def _send(self) -> None:
        report = self._report
        client, experiment_id = connect(self._uri, self._experiment)
        parent = open_run(client, experiment_id, self._record(self._name, report.key, self._params))
        for result in report.results:
            if result.seed not in self._sent:
                params = self._params | {"seed": str(result.seed)}
                record = self._record(f"seed {result.seed}", f"{report.key}s{result.seed}", params, parent)
                run = open_run(client, experiment_id, record)
                _log_epochs(client, run, result)
                client.set_terminated(run, end_time=int(result.epochs[-1].time * 1000))
                self._sent.add(result.seed)
        _log_summary(client, parent, report)
        client.set_terminated(parent)

    def _record(self, name: str, key: str, params: dict[str, str], parent: str | None = None) -> RunRecord:
        return RunRecord(redact(self._uri), self._experiment, name, params, {}, parent, key)


def _log_epochs(client: "MlflowClient", run: str, result: SeedResult) -> None:
    from mlflow.entities import Metric

    metrics = []
    for number, epoch in enumerate(result.epochs, 1):
        losses = {f"train_loss/{name}": value for name, value in epoch.train_loss.items()}
        values = losses | {f"valid/{name}": value for name, value in epoch.metrics.items()}
        metrics += [Metric(metric_name(name), value, int(epoch.time * 1000), number) for name, value in values.items()]
    client.log_batch(run, metrics=metrics)


def _log_summary(client: "MlflowClient", run: str, report: Report) -> None:
    """Of the seeds so far, at their number as the step."""
    from mlflow.entities import Metric

    values = {"mean": report.mean(report.metric), "baseline": report.baseline[report.metric]}
    if (deviation := report.deviation(report.metric)) is not None:
        values["sd"] = deviation
    time, seeds = int(report.results[-1].epochs[-1].time * 1000), len(report.results)
    names = {name: metric_name(f"{report.metric}/{name}") for name in values}
    client.log_batch(run, metrics=[Metric(names[name], value, time, seeds) for name, value in values.items()])
