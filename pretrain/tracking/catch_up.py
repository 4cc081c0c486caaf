"""Sending what MLflow lacks of a run, after it has ended or beside it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from data_prep.errors import UserError
from pretrain.redact import redact
from pretrain.tracking.record import RECORD_NAME, load_record, new_key
from pretrain.tracking.sender import Sender, one_line
from pretrain.tracking.target import OFFLINE, absolute, resolve_target


def sync(
    run_dir: Path,
    uri: str | None = None,
    experiment: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Send what MLflow lacks of a run, and return the number of points (metric values) sent.

    May be repeated, and run beside the training itself, without doubling anything. Raises UserError.

    Args:
        uri: where to; by default MLFLOW_TRACKING_URI, or where the run was tracked.
        experiment: by default MLFLOW_EXPERIMENT_NAME, or the run's.
        on_progress: called with the bytes of the journal that have been sent so far.
    """
    record = load_record(run_dir)
    if record is None:
        raise UserError(f"{run_dir} has no {RECORD_NAME}: give the folder of a run that was trained with tracking on")
    target, own_experiment = resolve_target(record.uri if record.uri != OFFLINE else "", record.experiment)
    target, experiment = absolute(uri) if uri else target, experiment or own_experiment
    if target in ("", OFFLINE):
        raise UserError(f"{run_dir} was trained with track.uri: none: say with --uri which MLflow is to get it")
    if "***" in target:
        raise UserError(f"the password of {target} is not kept in {run_dir / RECORD_NAME}: set MLFLOW_TRACKING_URI")
    if experiment != record.experiment:
        record = replace(record, experiment=experiment, key=new_key(), run_id=None)
    record.uri = redact(target)
    try:
        return Sender(run_dir, target, record, on_progress).send()
    except Exception as error:
        raise UserError(f"MLflow at {record.uri} does not take the data of {run_dir}: {one_line(error)}") from error
