"""What came of a fine-tuning: the file that is written after each seed, and from which a rerun goes on."""

import statistics
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from data_prep.errors import UnusableInput, UserError
from data_prep.files import write_json
from data_prep.reading import read_json, typed
from data_prep.reading.typed_values import Measurement, UnixTime
from pretrain.tracking.run_record import is_key, new_key


@dataclass(frozen=True)
class Epoch:
    """time: when it ended, in Unix seconds. train_loss: the mean of its steps, in nats, by model."""

    time: UnixTime
    train_loss: dict[str, Measurement]
    metrics: dict[str, Measurement]


@dataclass(frozen=True)
class SeedResult:
    """The epochs of one seed, the last one's metrics being its result."""

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
            raise UnusableInput(f"{path} cannot be written ({error.strerror}); the same command goes on") from error

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
            values = read_json(path, dict[str, Any], nan=True)
            names = {one.name for one in fields(_Saved)}
            found: _Saved = typed(_Saved, {name: value for name, value in values.items() if name in names})
            if not is_key(found.key) or not all(self._has_scores(result) for result in found.runs):
                raise ValueError("it has no scores")
        except (UserError, ValueError) as error:
            raise UnusableInput(
                f"{path} is there, and is no report of a fine-tuning; choose another --json ({error})"
            ) from error
        self.key, self.results = found.key, found.runs
        changed = [name for name in self.identity if found.identity.get(name) != self.identity[name]]
        if changed:
            raise UnusableInput(
                f"{path} is of a fine-tuning with another {' and '.join(changed)}; choose another --json"
            )

    def _has_scores(self, result: SeedResult) -> bool:
        return bool(result.epochs) and self.metric in result.metrics
