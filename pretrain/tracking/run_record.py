"""RUN/mlflow_run.json: where a run is tracked, and how much of it was sent."""

import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from data_prep.errors import MissingFile, UserError
from data_prep.reading import read_json, unusable

RECORD_NAME = "mlflow_run.json"
_HINT = "delete it to start a new MLflow run"


def new_key() -> str:
    """A name of a run for MLflow that no other has."""
    return uuid.uuid4().hex


@dataclass
class RunRecord:
    """The description of a run, how far its journal was sent, and the files that wait."""

    uri: str  # redacted
    experiment: str
    run_name: str
    params: dict[str, str]
    tags: dict[str, str]
    parent: str | None = None  # name or id of the MLflow run that this one is part of
    key: str = field(default_factory=new_key)  # finds the run again where its id was not recorded
    run_id: str | None = None
    experiment_id: str | None = None  # with run_id, the page of the run
    offset: int = 0  # bytes of the journal that have been sent
    step: int | Literal[-1] = -1  # of the last line sent
    restarts: int = 0
    status: str = "RUNNING"
    end_time: int | None = None  # Unix milliseconds
    artifacts: list[str] = field(default_factory=list)  # names of files in RUN that are still to be uploaded
    inputs: list[dict[str, str]] = field(default_factory=list)  # data sets, as `describe_input` gives them

    def continue_from(self, earlier: "RunRecord") -> None:
        """Keep the MLflow run, the progress and the waiting files of an earlier start of this run."""
        self.restarts = earlier.restarts + 1
        if earlier.experiment == self.experiment:
            self.key, self.run_id, self.experiment_id = earlier.key, earlier.run_id, earlier.experiment_id
            self.offset, self.step = earlier.offset, earlier.step
            self.artifacts = list(dict.fromkeys([*earlier.artifacts, *self.artifacts]))


def load_record(run_dir: Path) -> RunRecord | None:
    """The record of a run folder; None if there is no file. Raises UserError if it is damaged."""
    path = run_dir / RECORD_NAME
    try:
        record: RunRecord = read_json(path, RunRecord, hint=_HINT)
    except MissingFile:
        return None
    if not is_key(record.key):
        raise unusable(path, "its key is not 32 hexadecimal digits", _HINT)
    return record


def require_record(run_dir: Path) -> RunRecord:
    """The record of a run folder. Raises UserError if it is missing or damaged."""
    record = load_record(run_dir)
    if record is None:
        raise UserError(f"{run_dir} has no {RECORD_NAME}. Give the folder of a run that was trained with tracking on.")
    return record


def is_key(text: str) -> bool:
    """Whether a text may be a key, which becomes part of a search filter."""
    return re.fullmatch("[0-9a-f]{32}", text) is not None
