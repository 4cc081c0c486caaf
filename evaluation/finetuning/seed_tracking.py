"""Send a fine-tuning to MLflow: a run with mean and standard deviation, and a nested run per seed.

All points come from the result file and may be sent again: MLflow stores a repeated point once.
"""

from collections.abc import Iterator

from evaluation.finetuning.result_file import FinetuneResults, SeedResult
from pretrain.tracking import Point, Target, TrackedResults, send_results


def send_report(report: FinetuneResults, target: Target, name: str, params: dict[str, str]) -> None:
    """Send the results so far. A failure becomes a warning, and the next call sends everything.

    Args:
        name: of the MLflow run.
    """
    if report.results:
        seeds = [_seed_results(result, report.key, params) for result in report.results]
        send_results(target, [TrackedResults(name, report.key, params, list(_summary(report)), grows=True), *seeds])


def _seed_results(result: SeedResult, key: str, params: dict[str, str]) -> TrackedResults:
    points = [
        Point(name, value, epoch.time, number)
        for number, epoch in enumerate(result.epochs, 1)
        for values, prefix in ((epoch.train_loss, "train_loss"), (epoch.metrics, "valid"))
        for name, value in ((f"{prefix}/{name}", value) for name, value in values.items())
    ]
    seed = str(result.seed)
    return TrackedResults(f"seed {seed}", f"{key}s{seed}", params | {"seed": seed}, points, parent=key)


def _summary(report: FinetuneResults) -> Iterator[Point]:
    """Mean and deviation over the seeds so far; the step is the number of seeds."""
    values = {"mean": report.mean(report.metric), "sd": report.deviation(report.metric)}
    for name, value in (values | {"baseline": report.baseline[report.metric]}).items():
        if value is not None:
            time = report.results[-1].epochs[-1].time
            yield Point(f"{report.metric}/{name}", value, time, len(report.results))
