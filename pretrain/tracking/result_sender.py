"""Send the figures of evaluations and fine-tunings to MLflow: one run for each model or seed."""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from data_prep.urls import redact
from pretrain.config.mlflow_address import OFFLINE
from pretrain.tracking.journal_points import Point
from pretrain.tracking.mlflow_runs import MlflowRun, short_reason
from pretrain.tracking.run_record import RunRecord
from pretrain.tracking.tracking_target import Target

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrackedResults:
    """What one MLflow run holds.

    key: letters and digits that find the run again. parent: the key of the run that this one belongs to, if that is in
    the same experiment. grows: later results of the same key add points; else the run is sent once.
    """

    name: str
    key: str
    params: dict[str, str]
    points: list[Point]
    parent: str | None = None
    grows: bool = False


def send_results(target: Target, results: Iterable[TrackedResults]) -> None:
    """Send results in turn; OFFLINE sends nothing. A failure becomes a warning, and the rest is not sent."""
    if target.uri == OFFLINE:
        return
    try:
        for one in results:
            _send(target, one)
    except Exception as error:
        _log.warning("MLflow at %s did not take the results (%s).", redact(target.uri), short_reason(error))


def _send(target: Target, results: TrackedResults) -> None:
    sent = MlflowRun.find(target, results.key)
    if sent and sent.run.info.status == "FINISHED" and not results.grows:
        return
    parent = MlflowRun.find(target, results.parent) if results.parent else None
    record = RunRecord(
        redact(target.uri),
        target.experiment,
        results.name,
        results.params,
        tags={},
        parent=parent.id if parent else None,
        key=results.key,
    )
    run = MlflowRun.open(target, record)
    run.log_points(results.points)
    run.end("FINISHED", int(1000 * max((point.time for point in results.points), default=time.time())))
