"""History of a job across restarts and requeues: RUN/slurm/supervisor.json."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_prep.errors import MissingFile, UserError
from data_prep.files import write_json
from data_prep.reading import read_json, typed, unusable
from launchers.slurm.requeue_decision import LaunchHistory

_NEEDED = {"job_id", "checkpoint", "restarts", "requeues", "failure"}
_MAX_RECORD_BYTES = 1 << 20


def read_history(path: Path, job_id: int) -> LaunchHistory:
    """Read the job's history; empty if the record is missing, damaged, or from another job."""
    try:
        history = _read(path)
    except MissingFile:
        return LaunchHistory(job_id)
    except UserError as error:
        print(f"warning: {error} Counting restarts from 0.", flush=True)
        return LaunchHistory(job_id)
    return history if history.job_id == job_id else LaunchHistory(job_id)


def _read(path: Path) -> LaunchHistory:
    values: dict[str, Any] = read_json(path, dict[str, Any], _MAX_RECORD_BYTES)
    try:
        if missing := sorted(_NEEDED - values.keys()):
            raise ValueError(f"it has no {missing[0]}")
        values.pop("saving", None)  # of earlier versions
        history: LaunchHistory = typed(LaunchHistory, values)
    except ValueError as error:
        raise unusable(path, str(error)) from None
    return history


def write_history(path: Path, history: LaunchHistory) -> None:
    """Replace the record atomically.

    Raises:
        OSError: if it cannot be written.
    """
    write_json(path, asdict(history))
