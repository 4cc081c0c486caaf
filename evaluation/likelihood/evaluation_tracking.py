"""Send an evaluation to MLflow: one run per model, nested in its training run if both are in one experiment."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pretrain.tracking import Point, Target, TrackedResults, send_results


def send_evaluation(values: Mapping[str, Any], target: Target) -> None:
    """Send the results of `evaluate`. Identical results are sent once. A failure becomes a warning."""
    send_results(target, [_results(name, values["settings"], results) for name, results in values["models"].items()])


def _results(name: str, settings: Mapping[str, Any], results: Mapping[str, Any]) -> TrackedResults:
    key = hashlib.sha256(json.dumps([name, settings, results]).encode()).hexdigest()[:32]
    points = [Point(metric, value, time.time(), 0) for metric, value in _metrics(results)]
    params = {"model": name}
    params |= {f"{part}.{key}": str(value) for part, values in settings.items() for key, value in values.items()}
    return TrackedResults(f"evaluate {name}", key, params, points, model=Path(name))


def _metrics(results: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, float]]:
    """Flatten nested results: `pairs/by/field:syntax/accuracy`; the bounds of intervals are `lower` and `upper`."""
    for key, value in results.items():
        if key == "interval" and value:
            yield from _metrics(dict(zip(("lower", "upper"), value, strict=True)), name)
        elif isinstance(value, Mapping):
            yield from _metrics(value, f"{name}{key}/")
        elif isinstance(value, int | float):
            yield name + key, float(value)
