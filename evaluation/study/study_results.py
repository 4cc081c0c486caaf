"""Read the results of a study's runs, and compare the arms."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data_prep.reading import MAX_FLOAT
from evaluation.study.arm_run import EVALUATION, FINETUNING, is_done, read_result
from evaluation.study.paired_statistics import Difference, Mean, Seeds, Verdict, mean_of, verdict_of
from evaluation.study.step_timing import steps_of
from evaluation.study.study_file import Budget, Study, child_at
from pretrain.run import JournalTable, read_measured

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
class StudyResults:
    """Results at one budget. values: by metric, arm and seed. missing: names of unfinished runs."""

    budget: Budget
    values: dict[str, dict[str, dict[int, float]]]
    missing: list[str]


@dataclass(frozen=True)
class Comparisons:
    """Comparison by one metric: mean of each arm, differences from the baseline, and the verdict on the best arm."""

    metric: Metric
    means: dict[str, Mean]
    from_baseline: dict[str, Difference]
    verdict: Verdict | None


def read_results(folder: Path, study: Study, budget: Budget) -> StudyResults:
    """Read the results of all finished runs."""
    values: dict[str, dict[str, dict[int, float]]] = {}
    missing = []
    for seed in range(1, study.seeds + 1):
        for arm in study.arms:
            child = child_at(study, budget, arm, seed)
            if not is_done(folder, study, child, steps_of(folder, study, child)):
                missing.append(child.name)
                continue
            for key, value in figures(child.run(folder)).items():
                values.setdefault(key, {}).setdefault(arm.name, {})[seed] = value
    return StudyResults(budget, values, missing)


def figures(run: Path) -> dict[str, float]:
    """Results of one run by metric; values that are not finite are left out."""
    found = {**evaluated(read_result(run / EVALUATION) or {}), **trained(read_measured(run / "journal.jsonl"))}
    score = (read_result(run / FINETUNING) or {}).get("mean")
    return _finite({**found, "downstream": score})


def evaluated(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Results of `maskwright evaluate` for its only model."""
    model = _object(next(iter(_object(evaluation.get("models")).values()), None))
    held_out, pairs = _object(model.get("held_out")), _object(model.get("pairs"))
    accuracy = pairs.get("accuracy")
    return {"held_out": held_out.get("loss"), "masked_accuracy": held_out.get("masked_accuracy"), "pairs": accuracy}


def _object(value: Any) -> dict[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def trained(measured: JournalTable) -> dict[str, float]:
    """Steps, real tokens and seconds of training, without repeated steps, evaluations and checkpoints."""
    kept = measured.kept
    seconds, tokens = float(measured.seconds[kept].sum()), float(measured.tokens[kept].sum())
    found = {"steps": float(len(kept)), "tokens": round(tokens), "seconds": seconds}
    return found | ({"tokens_per_second": tokens / seconds} if seconds else {})


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in values.items()
        if type(value) in (int, float) and abs(value) <= MAX_FLOAT  # False for NaN
    }


def compare(study: Study, results: StudyResults) -> list[Comparisons]:
    """Compare the arms by every measured metric, in the order of METRICS."""
    return [
        compare_arms(metric, results.values[metric.key], study.baseline)
        for metric in METRICS
        if metric.key in results.values
    ]


def compare_arms(metric: Metric, values: Mapping[str, Seeds], baseline: str) -> Comparisons:
    """Compare the arms by one metric. The differences from the baseline are part of the verdict's family."""
    means = {arm: mean_of(list(seeds.values())) for arm, seeds in values.items()}
    verdict = verdict_of(values, metric.better == "higher") if metric.better else None
    found = verdict.differences if verdict else {}
    from_baseline = {arm: minus[baseline] for arm, minus in found.items() if baseline in minus}
    return Comparisons(metric, means, from_baseline, verdict)
