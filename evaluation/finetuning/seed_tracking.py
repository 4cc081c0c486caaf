"""A fine-tuning in MLflow: a run with mean and deviation, and below it one for each seed.

All that is sent is in the report, so it may be sent again: MLflow keeps one row of a point that it gets twice.
"""

from collections.abc import Iterator

from evaluation.finetuning.result_file import FinetuneResults, SeedResult
from pretrain.tracking import Point, Target, TrackedResults, send_results


def send_report(report: FinetuneResults, target: Target, name: str, params: dict[str, str]) -> None:
    """Send what a report has so far. A failure becomes a warning, and the next call sends everything.

    Args:
        name: of the run in MLflow.
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
    """Of the seeds so far, with their number as the step."""
    values = {"mean": report.mean(report.metric), "sd": report.deviation(report.metric)}
    for name, value in (values | {"baseline": report.baseline[report.metric]}).items():
        if value is not None:
            time = report.results[-1].epochs[-1].time
            yield Point(f"{report.metric}/{name}", value, time, len(report.results))
