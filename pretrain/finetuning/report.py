"""What came of a fine-tuning: the file that is written after each seed, and from which a rerun goes on."""

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.files import write_json
from pretrain.tracking.record import new_key


@dataclass(frozen=True)
class Epoch:
    """time: when it ended, in Unix seconds. train_loss: the mean of its steps, in nats, by model."""

    time: float
    train_loss: dict[str, float]
    metrics: dict[str, float]


@dataclass(frozen=True)
class SeedResult:
    """The epochs of one seed, the last one's metrics being its result."""

    seed: int
    seconds: float
    epochs: list[Epoch]

    @property
    def metrics(self) -> dict[str, float]:
        return self.epochs[-1].metrics


@dataclass
class Report:
    """Of one fine-tuning.

    Attributes:
        identity: what decides the scores: settings, and digests of the model and of the examples.
        baseline: metrics without a model.
        key: finds the runs again in MLflow.
    """

    metric: str
    identity: dict[str, Any]
    baseline: dict[str, float]
    results: list[SeedResult] = field(default_factory=list)
    key: str = field(default_factory=new_key)

    def values(self, metric: str) -> list[float]:
        """Of each seed."""
        return [result.metrics[metric] for result in self.results]

    def mean(self, metric: str) -> float:
        return statistics.fmean(self.values(metric))

    def deviation(self, metric: str) -> float | None:
        """The standard deviation of a sample; None of a single seed."""
        return statistics.stdev(self.values(metric)) if len(self.results) > 1 else None

    def write(self, path: Path) -> None:
        """Raises UserError if it cannot be written."""
        try:
            write_json(path, self.to_json())
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}); the same command goes on") from error

    def to_json(self) -> dict[str, Any]:
        return {
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

    def take_over(self, path: Path) -> None:
        """Take the seeds of an earlier report of the same fine-tuning, if there is one.

        Raises:
            UserError: if the file is something else, or of another fine-tuning.
        """
        if not path.exists():
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            identity, self.key = found["identity"], found["key"]
            self.results = [
                SeedResult(run["seed"], run["seconds"], [Epoch(**epoch) for epoch in run["epochs"]])
                for run in found["runs"]
            ]
        except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
            raise UserError(f"{path} is there, and is no report of a fine-tuning; choose another --json") from error
        changed = [name for name in self.identity if identity.get(name) != self.identity[name]]
        if changed:
            raise UserError(f"{path} is of a fine-tuning with another {' and '.join(changed)}; choose another --json")
