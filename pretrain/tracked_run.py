"""The MLflow run of a run folder, as other commands than the forwarder use it."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.errors import UserError
from data_prep.reader import Dataset
from data_prep.remote import redact
from pretrain.config import Config
from pretrain.tracking import load_record
from pretrain.tracking.destination import destination
from pretrain.tracking.inputs import describe_input, send_inputs
from pretrain.tracking.runs import find_run
from pretrain.tracking.sender import one_line
from pretrain.tracking.target import connect

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True)
class TrackedRun:
    """A run of MLflow's.

    key: its tag that Maskwright finds it by. params: its parameters, as MLflow has them.
    """

    client: "MlflowClient"
    experiment_id: str
    run_id: str
    key: str
    params: dict[str, str]

    @classmethod
    def find(cls, run: Path, uri: str | None = None) -> "TrackedRun":
        """The MLflow run of the run folder `run`.

        Args:
            uri: address of MLflow; by default MLFLOW_TRACKING_URI, or the default of track.uri if the run is there.

        Raises:
            UserError: if it is not there. MLflow's and the network's own errors.
        """
        record = load_record(run)
        if record is None:
            raise UserError(f"{run} is not in MLflow. Train it first.")
        uri, experiment = destination(run, record, uri)
        client, experiment_id = connect(uri, experiment)
        found = find_run(client, experiment_id, record.key)
        if found is None:
            raise UserError(f"{run} is not in MLflow at {redact(uri)} yet. Run: maskwright track sync {run}")
        return cls(client, experiment_id, found.info.run_id, record.key, found.data.params)

    def outputs(self) -> set[str]:
        """The ids of the logged models that are the run's output."""
        outputs = self.client.get_run(self.run_id).outputs
        return {model.model_id for model in outputs.model_outputs} if outputs else set()

    def held_out(self, config: Config) -> tuple[str, str] | tuple[None, None]:
        """Name and digest of the held-out data, made known to the run; none where they are gone."""
        place = config.data.valid
        if place is None:
            return None, None
        with contextlib.suppress(UserError, OSError):
            found = describe_input(Dataset(place), "eval")
            send_inputs(self.client, self.client.get_run(self.run_id), [found])
            return found["name"], found["digest"]
        return None, None


@contextlib.contextmanager
def errors_in_a_sentence(doing: str) -> Iterator[None]:
    """MLflow and the network have many exceptions; each becomes a UserError that says what failed."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{doing} failed: {one_line(error)}") from error
