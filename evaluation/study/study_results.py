"""Read the results of a study's runs, and compare the arms."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data_prep.common.reading import MAX_FLOAT
from evaluation.study.early_stopping import stopped_arms
from evaluation.study.paired_statistics import BySeed, Difference, Mean, Verdict, mean_of, verdict_of
from evaluation.study.study_file import EVALUATION, FINETUNING, Study, read_result
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
    """Comparison by one metric: mean of each arm, differences from the baseline, and the verdict on the best arm.

    stopped: arms that were stopped early; only their means are here.
    """

    metric: Metric
    means: dict[str, Mean]
    stopped: tuple[str, ...]
    from_baseline: dict[str, Difference]
    verdict: Verdict | None


@dataclass(frozen=True)
class StudyResults:
    """Results of the finished runs.

    values: see `values_of`. missing: names of unfinished runs that are not left out. stopped: see `stopped_of`; without
    arms that have all their seeds. comparisons: by each measured metric, the primary one first.
    """

    values: dict[str, dict[str, dict[int, float]]]
    missing: list[str]
    stopped: dict[str, int]
    comparisons: list[Comparisons]


def read_results(study: Study) -> StudyResults:
    """Read the results of all finished runs."""
    values = values_of(study)
    unfinished = [run for run in study.runs if not run.is_done]
    primary = values.get(study.primary, {})
    looks = max(map(max, primary.values()), default=1) - 1  # the newest seed may be unfinished
    worse = stopped_of(study, primary, looks) if study.stop_early else {}
    stopped = {run.arm.name: worse[run.arm.name] for run in unfinished if run.seed > worse.get(run.arm.name, run.seed)}
    missing = [run.name for run in unfinished if run.seed <= stopped.get(run.arm.name, run.seed)]
    metrics = sorted(METRICS, key=lambda metric: metric.key != study.primary)
    compared = [
        compare_arms(metric, values[metric.key], study.baseline, stopped) for metric in metrics if metric.key in values
    ]
    return StudyResults(values, missing, stopped, compared)


def values_of(study: Study) -> dict[str, dict[str, dict[int, float]]]:
    """The figures of all finished runs by metric, arm and seed; without losses if they cannot be compared."""
    values: dict[str, dict[str, dict[int, float]]] = {}
    for run in study.runs:
        for key, value in figures(run.folder).items() if run.is_done else ():
            if study.losses or key not in ("held_out", "masked_accuracy"):
                values.setdefault(key, {}).setdefault(run.arm.name, {})[run.seed] = value
    return values


def stopped_of(study: Study, values: Mapping[str, BySeed], looks: int) -> dict[str, int]:
    """The arms that the sequential test stops by these values of the primary measure: see `stopped_arms`."""
    higher = any(metric.better == "higher" for metric in METRICS if metric.key == study.primary)
    return stopped_arms(values, [arm.name for arm in study.arms], study.seeds, higher, looks)


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


def compare_arms(
    metric: Metric, values: Mapping[str, BySeed], baseline: str, stopped: Collection[str] = ()
) -> Comparisons:
    """Compare the arms by one metric, without those that were stopped, which lack seeds.

    The differences from the baseline are part of the verdict's family.
    """
    highest = 1.0 if metric.unit == "share" else math.inf
    lowest = -math.inf if metric.unit == "number" else 0.0
    means = {arm: mean_of(list(seeds.values()), lowest, highest) for arm, seeds in values.items()}
    going_on = {arm: seeds for arm, seeds in values.items() if arm not in stopped}
    verdict = verdict_of(going_on, metric.better == "higher") if metric.better else None
    differences = verdict.differences if verdict else {}
    from_baseline = {arm: minus[baseline] for arm, minus in differences.items() if baseline in minus}
    return Comparisons(metric, means, tuple(stopped), from_baseline, verdict)
