"""Send the part of a run that MLflow does not have yet, after the run or while it trains."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from data_prep.errors import UserError
from data_prep.remote import redact
from pretrain.tracking.destination import destination
from pretrain.tracking.record import RECORD_NAME, load_record, new_key
from pretrain.tracking.sender import Sender, short_reason


def sync(
    run_dir: Path,
    uri: str | None = None,
    experiment: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Send what MLflow lacks of a run, and return the number of points (metric values) sent.

    May be repeated, and run beside the training itself, without doubling anything. Raises UserError.

    Args:
        uri: where to; by default MLFLOW_TRACKING_URI, or the default of track.uri if the run was tracked there.
        experiment: by default MLFLOW_EXPERIMENT_NAME, or the run's.
        on_progress: called with the bytes of the journal that have been sent so far.
    """
    record = load_record(run_dir)
    if record is None:
        raise UserError(f"{run_dir} has no {RECORD_NAME}. Give the folder of a run that was trained with tracking on.")
    target, own_experiment = destination(run_dir, record, uri)
    experiment = experiment or own_experiment
    if experiment != record.experiment:
        record = replace(record, experiment=experiment, key=new_key(), run_id=None)
    record.uri = redact(target)
    try:
        return Sender(run_dir, target, record, on_progress).send()
    except Exception as error:
        raise UserError(
            f"MLflow at {record.uri} does not take the data of {run_dir} ({short_reason(error)})"
        ) from error
