"""Read the results of a study's runs, and compare the arms."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from data_prep.common.reading import MAX_FLOAT
from evaluation.study.paired_statistics import BySeed, Difference, Mean, Verdict, mean_of, verdict_of
from evaluation.study.study_file import EVALUATION, FINETUNING, Study, read_result
from pretrain.reporting import line_of
from pretrain.run import JournalTable, RunFolder

Unit = Literal["nats", "share", "number", "seconds", "count"]


@dataclass(frozen=True)
class Metric:
    """A measure of a run. better: None for a measure that is reported but not compared."""

    key: str
    title: str
    unit: Unit
    better: Literal["higher", "lower"] | None


METRICS = (
    Metric("held_out", "held-out loss", "nats", "lower"),
    Metric("masked_accuracy", "masked accuracy", "share", "higher"),
    Metric("pairs", "minimal pairs", "share", "higher"),
    Metric("downstream", "downstream score", "number", "higher"),
    Metric("steps", "steps", "count", None),
    Metric("tokens", "tokens", "count", None),
    Metric("seconds", "seconds", "seconds", None),
    Metric("tokens_per_second", "tokens/s", "count", None),
)


@dataclass(frozen=True)
class Comparisons:
    """Comparison by one metric: mean of each arm, differences from the baseline, and the verdict on the best arm."""

    metric: Metric
    means: dict[str, Mean]
    from_baseline: dict[str, Difference]
    verdict: Verdict | None


@dataclass(frozen=True)
class StudyResults:
    """Results of the finished runs.

    values: by metric, arm and seed. missing: names of unfinished runs. comparisons: by each measured metric.
    lines: the held-out loss of each arm over training, as JSON values of the page's chart.
    """

    values: dict[str, dict[str, dict[int, float]]]
    missing: list[str]
    comparisons: list[Comparisons]
    lines: list[dict[str, Any]]


def read_results(study: Study) -> StudyResults:
    """Read the results of all finished runs, and the curves of all begun ones."""
    values: dict[str, dict[str, dict[int, float]]] = {}
    missing, journals = [], dict[str, list[JournalTable]]()
    for run in study.runs:
        if run.is_done:
            for key, value in figures(run.folder).items():
                values.setdefault(key, {}).setdefault(run.arm.name, {})[run.seed] = value
        else:
            missing.append(run.name)
        if (journal := RunFolder(run.folder).journal).exists():
            journals.setdefault(run.arm.name, []).append(JournalTable.read(journal))
    compared = [compare_arms(metric, values[metric.key], study.baseline) for metric in METRICS if metric.key in values]
    lines = [curve(arm.name, journals.get(arm.name, []), hue) for hue, arm in enumerate(study.arms)]
    return StudyResults(values, missing, compared, [line for line in lines if line])


def figures(run: Path) -> dict[str, float]:
    """Results of one run by metric; values that are missing, not numbers or not finite are left out."""
    evaluation, journal = read_result(run / EVALUATION), JournalTable.read(RunFolder(run).journal)
    model = _object(next(iter(_object(evaluation.get("models")).values()), None))  # its only one
    held_out, kept = _object(model.get("held_out")), journal.kept  # without repeated steps, evaluations and checkpoints
    seconds, tokens = float(journal.seconds[kept].sum()), float(journal.tokens[kept].sum())
    values: dict[str, Any] = {
        "held_out": held_out.get("loss"),
        "masked_accuracy": held_out.get("masked_accuracy"),
        "pairs": _object(model.get("pairs")).get("accuracy"),
        "downstream": read_result(run / FINETUNING).get("mean"),
        "steps": len(kept),
        "tokens": round(tokens),
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else None,
    }
    return {
        key: float(value)
        for key, value in values.items()
        if type(value) in (int, float) and abs(value) <= MAX_FLOAT  # False for NaN
    }


def _object(value: Any) -> dict[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def compare_arms(metric: Metric, values: Mapping[str, BySeed], baseline: str) -> Comparisons:
    """Compare the arms by one metric. The differences from the baseline are part of the verdict's family."""
    highest = 1.0 if metric.unit == "share" else math.inf
    lowest = -math.inf if metric.unit == "number" else 0.0
    means = {arm: mean_of(list(seeds.values()), lowest, highest) for arm, seeds in values.items()}
    verdict = verdict_of(values, metric.better == "higher") if metric.better else None
    differences = verdict.differences if verdict else {}
    from_baseline = {arm: minus[baseline] for arm, minus in differences.items() if baseline in minus}
    return Comparisons(metric, means, from_baseline, verdict)


def curve(arm: str, runs: list[JournalTable], hue: int) -> dict[str, Any]:
    """Held-out loss at the evaluations that all runs share: mean, minimum and maximum; empty if no run has one."""
    evaluated = [(run, run.series("eval/loss")) for run in runs]
    evaluated = [(run, series) for run, series in evaluated if np.isfinite(series.values).any()]
    if not evaluated:
        return {}
    steps = evaluated[0][1].steps
    for _, series in evaluated[1:]:
        steps = np.intersect1d(steps, series.steps)
    losses = np.array([series.values[np.isin(series.steps, steps)] for _, series in evaluated])
    tokens, hours = np.mean([_progress(run, steps) for run, _ in evaluated], axis=0)
    axes = {"step": steps, "tokens": tokens, "hours": hours}
    low, mean, high = losses.min(axis=0), losses.mean(axis=0), losses.max(axis=0)
    return line_of(arm, "points", steps, mean, hue=hue, low=low, high=high, axes=axes)


def _progress(run: JournalTable, steps: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Tokens and hours of training up to each step; repeated steps count once."""
    kept = run.kept
    at = np.searchsorted(run.steps[kept], steps, side="right")
    tokens, seconds = (np.concatenate([[0.0], np.cumsum(values[kept])]) for values in (run.tokens, run.seconds))
    return tokens[at], seconds[at] / 3600
