"""An evaluation in MLflow: a run for each model, below the run that trained it where that is in the same experiment."""

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.remote import redact
from pretrain.tracking import OFFLINE, RunRecord
from pretrain.tracking.bulk import Point, log_points
from pretrain.tracking.points import metric_name
from pretrain.tracking.record import load_record
from pretrain.tracking.runs import find_run, open_run
from pretrain.tracking.sender import short_reason
from pretrain.tracking.target import connect

if TYPE_CHECKING:
    from mlflow import MlflowClient

_log = logging.getLogger(__name__)

_FINISHED = "FINISHED"


def send(found: Mapping[str, Any], uri: str, experiment: str) -> None:
    """Send what `evaluate` found; the same figures are there once. What goes wrong becomes a warning.

    Args:
        uri: OFFLINE sends nothing.
    """
    if uri == OFFLINE:
        return
    try:
        client, experiment_id = connect(uri, experiment)
        for name, results in found["models"].items():
            key = hashlib.sha256(json.dumps([name, found["settings"], results]).encode()).hexdigest()[:32]
            sent = find_run(client, experiment_id, key)
            if sent and sent.info.status == _FINISHED:
                continue
            params = {"model": name, **_params(found["settings"])}
            parent = _training(client, experiment_id, Path(name))
            record = RunRecord(redact(uri), experiment, f"evaluate {name}", params, {}, parent, key)
            run, now = open_run(client, experiment_id, record), int(time.time() * 1000)
            log_points(client, uri, run, [Point(metric_name(key), value, now, 0) for key, value in _metrics(results)])
            client.set_terminated(run, status=_FINISHED)
    except Exception as error:
        _log.warning("MLflow at %s did not take the results (%s).", redact(uri), short_reason(error))


def _training(client: "MlflowClient", experiment_id: str, model: Path) -> str | None:
    """The id of the run that trained the model, if that is a run's folder."""
    record = load_record(model)
    run = find_run(client, experiment_id, record.key) if record else None
    return str(run.info.run_id) if run else None


def _params(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {f"{part}.{name}": str(value) for part, values in settings.items() for name, value in values.items()}


def _metrics(results: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers by the keys that lead to them, `pairs/by/field:syntax/accuracy`; bounds are `lower` and `upper`."""
    for key, value in results.items():
        if key == "interval" and value:
            yield from _metrics(dict(zip(("lower", "upper"), value, strict=True)), name)
        elif isinstance(value, Mapping):
            yield from _metrics(value, f"{name}{key}/")
        elif isinstance(value, int | float):
            yield name + key, float(value)
