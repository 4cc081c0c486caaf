"""Results of a fine-tuning: the file, written after each seed, from which a rerun resumes, and the runs in MLflow."""

import statistics
import uuid
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_prep.common.errors import UnusableInput, UserError
from data_prep.common.files import write_json
from data_prep.common.reading import Measurement, UnixTime, read_json, typed
from pretrain.tracking import Point, Target, TrackedResults, send_results


@dataclass(frozen=True)
class Epoch:
    """Results of an epoch. time: its end in Unix seconds.

    train_loss: mean over its steps by model, in nats; the mean square error for a regression.
    """

    time: UnixTime
    train_loss: dict[str, Measurement]
    metrics: dict[str, Measurement]


@dataclass(frozen=True)
class SeedResult:
    """Epochs of one seed. The metrics of the last epoch are the result."""

    seed: int
    seconds: float
    epochs: list[Epoch]

    @property
    def metrics(self) -> dict[str, float]:
        return self.epochs[-1].metrics


@dataclass(frozen=True)
class _Saved:
    """The part of a report's file from which a rerun continues."""

    identity: dict[str, Any]
    key: str
    runs: list[SeedResult]


@dataclass
class FinetuneResults:
    """Results of one fine-tuning, seed by seed.

    identity: everything that determines the scores: settings, digests of the model and the examples.
    baseline: metrics without a model. names: of the files, for MLflow. key: identifies the runs in MLflow.
    path: of their file. out: the folder that gets the model of the best seed.
    """

    metric: str
    identity: dict[str, Any]
    baseline: dict[str, float]
    results: list[SeedResult] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    path: Path | None = None
    out: Path | None = None

    def values(self, metric: str) -> list[float]:
        """The metric of each seed."""
        return [result.metrics[metric] for result in self.results]

    def mean(self, metric: str) -> float:
        return statistics.fmean(self.values(metric))

    def deviation(self, metric: str) -> float | None:
        """Sample standard deviation; None for a single seed."""
        return statistics.stdev(self.values(metric)) if len(self.results) > 1 else None

    def write(self, path: Path) -> None:
        """Write the file. Raise UserError if that fails."""
        values = {
            "task": self.identity["task"],
            "metric": self.metric,
            "scores": self.values(self.metric),
            "mean": self.mean(self.metric),
            "sd": self.deviation(self.metric),
            "by_seed": [result.metrics for result in self.results],
            "baseline": self.baseline,
            "runs": [asdict(result) for result in self.results],
            "identity": self.identity,
            "key": self.key,
        }
        try:
            write_json(path, values)
        except OSError as error:
            raise UnusableInput(
                f"{path} cannot be written ({error.strerror}). To resume, run the same command again."
            ) from error

    def resume_from(self, path: Path, ignored: Collection[str] = ()) -> None:
        """Load the seeds of an earlier file of the same fine-tuning, if it exists. ignored: keys that may differ.

        Raises UserError if it is another kind of file, or belongs to another fine-tuning.
        """
        if not path.exists():
            return
        try:
            values = read_json(path, dict[str, Any], nan=True)
            names = ("identity", "key", "runs")
            saved: _Saved = typed(_Saved, {name: values[name] for name in names if name in values})
            if not all(result.epochs for result in saved.runs):
                raise ValueError("it has no scores")
        except (UserError, ValueError) as error:
            raise UnusableInput(
                f"{path} is there, and is no report of a fine-tuning; choose another --json ({error})"
            ) from error
        compared = [name for name in self.identity if name not in ignored]
        changed = [name for name in compared if saved.identity.get(name) != self.identity[name]]
        if changed:
            raise UnusableInput(
                f"{path} is of a fine-tuning with another {' and '.join(changed)}; choose another --json, or "
                "remove this file"
            )
        if not all(self.metric in result.metrics for result in saved.runs):
            raise UnusableInput(f"{path} has no {self.metric}; choose another --json")
        self.key, self.results = saved.key, saved.runs

    def send(self, target: Target, name: str, model_name: str, model: Path | None) -> None:
        """Send the results so far to MLflow. A failure becomes a warning, and the next call sends everything.

        The parameters are the identity, with names of the model and the files in place of digests.

        Args:
            name: of the MLflow run. model: what was fine-tuned; None for random weights.
        """
        params = {key: str(value) for key, value in self.identity.items()} | {"model": model_name, **self.names}
        if self.results:
            seeds = [_seed_results(result, self.key, params) for result in self.results]
            summary = TrackedResults(name, self.key, params, list(self._summary()), grows=True, model=model)
            send_results(target, [summary, *seeds])

    def _summary(self) -> Iterator[Point]:
        """Mean and deviation over the seeds so far; the step is the number of seeds."""
        name, time = self.metric, self.results[-1].epochs[-1].time
        values = {"mean": self.mean(name), "sd": self.deviation(name), "baseline": self.baseline[name]}
        for what, value in values.items():
            if value is not None:
                yield Point(f"{name}/{what}", value, time, len(self.results))


def _seed_results(result: SeedResult, key: str, params: dict[str, str]) -> TrackedResults:
    points = [
        Point(name, value, epoch.time, number)
        for number, epoch in enumerate(result.epochs, 1)
        for values, prefix in ((epoch.train_loss, "train_loss"), (epoch.metrics, "valid"))
        for name, value in ((f"{prefix}/{name}", value) for name, value in values.items())
    ]
    seed = str(result.seed)
    return TrackedResults(f"seed {seed}", f"{key}s{seed}", params | {"seed": seed}, points, parent=key)
