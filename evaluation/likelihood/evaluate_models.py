"""Evaluate several models on the same held-out text and minimal pairs, and compare them with the first one.

The results go to MLflow as one run per model, nested in its training run if both are in one experiment.
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from data_prep.common.urls import shown
from data_prep.format import Dataset
from evaluation.likelihood.held_out_loss import HeldOut, Masks, held_out_results, measure
from evaluation.likelihood.minimal_pairs import credits, pair_results, read_pairs, units
from evaluation.likelihood.predictors import Predictor, Unigram, open_model, open_tokenizer
from evaluation.likelihood.score_file import ScoreFile
from evaluation.likelihood.sentence_scores import check_lengths, sentence_scores
from pretrain.export import check_vocabulary, load_tokenizer
from pretrain.tracking import Point, Target, TrackedResults, send_results

_SEQ_LEN = 128
_RESAMPLES = 2000
LEAST = 20  # units of a bootstrap; percentiles of fewer are far too narrow

EvaluationProgress = Callable[[int, int, str], None]
"""(units done, units in total, name of the current task)"""
UnitSums = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Sums of a measure over each independent unit, such as a row, and the units' weights: [U] each."""


@dataclass(frozen=True)
class EvaluationRequest:
    """Models, data and settings of one evaluation.

    models: folders of models or runs. counts: a data set; a unigram model of its token counts comes after them.
    data: the held-out data set.
    rows, seq_len, mask_rate: see Masks. Default seq_len: 128, or the shortest limit of the models.
    pairs: a file, see minimal_pairs.py. limit: pairs per UID.
    """

    models: tuple[str, ...]
    data: str | None = None
    counts: str | None = None
    rows: int = 1000
    seq_len: int | None = None
    mask_rate: float = 0.15
    pairs: str | None = None
    limit: int | None = None


def evaluate(task: EvaluationRequest, progress: EvaluationProgress, scores_in: Path | None = None) -> dict[str, Any]:
    """Return all results as JSON values (docs/evaluation.md).

    scores_in: a file that keeps the scores of sentences; those that it has are not computed again.

    Raises UserError for an unusable model, data set or file, or for a model and data set with different tokenizers.
    """
    pairs = read_pairs(task.pairs, task.limit) if task.pairs else []
    texts = [text for pair in pairs for text in pair.texts]
    contexts = [pair.context for pair in pairs for _ in pair.texts]
    models: list[Predictor] = [open_model(Path(name)) for name in task.models]
    held_out = _held_out(task, models)
    for model in models:
        if model.longest is not None:
            check_lengths(model.name, model.tokenizer, model.longest, texts)
    counted = Dataset(task.counts) if task.counts else None
    if counted:
        models.append(_unigram(counted, held_out, progress))
    results: dict[str, dict[str, Any]] = {model.name: {} for model in models}
    sums: dict[str, dict[str, UnitSums]] = defaultdict(dict)  # by measure and model
    kept = ScoreFile(scores_in) if scores_in else None  # after all checks, so that no refusal leaves a file
    for model in models:
        of_model = results[model.name]
        if held_out:
            answers = measure(held_out, model, _named(progress, f"held-out text: {model.name}"))
            losses, right, weights = answers.by_row()
            interval = {"loss_interval": paired_bootstrap(losses, weights)}
            of_model["held_out"] = held_out_results(answers) | interval
            sums["held_out.loss"][model.name] = losses, weights
            sums["held_out.masked_accuracy"][model.name] = right, weights
        if pairs:
            scoring = _named(progress, f"{len(pairs):,} pairs: {model.name}")
            scores = sentence_scores(model, texts, scoring, file=kept, contexts=contexts)
            credit, uid = credits(pairs, scores), units(pairs)
            score = "log-likelihood" if model.causal else "pseudo-log-likelihood"
            of_model["pairs"] = {"score": score, **pair_results(pairs, credit)}
            by_uid = np.bincount(uid, credit).astype(np.float64)
            sums["pairs.accuracy"][model.name] = by_uid, np.bincount(uid).astype(np.float64)
    if kept:
        kept.close()
    comparisons = [each for name, by_model in sums.items() for each in _comparisons(name, by_model)]
    return {"settings": _settings(task, held_out, counted), "models": results, "comparisons": comparisons}


def check_pairs(path: str, limit: int | None, tokenizer: Path, causal: bool, longest: int) -> None:
    """Raise UserError if a file of pairs cannot be read, or a model of `longest` tokens cannot take a sentence.

    Args:
        limit: per UID. tokenizer: folder of the model's tokenizer.
    """
    sentences = [text for pair in read_pairs(path, limit) for text in pair.texts]
    check_lengths(path, open_tokenizer(load_tokenizer(tokenizer), tokenizer, causal), longest, sentences)


def _named(progress: EvaluationProgress, line: str) -> Callable[[int, int], None]:
    return lambda done, of: progress(done, of, line)


def _unigram(counted: Dataset, held_out: HeldOut | None, progress: EvaluationProgress) -> Unigram:
    if held_out and counted.manifest.tokenizer.sha256 != held_out.dataset.manifest.tokenizer.sha256:
        raise UserError(
            f"{counted.location} was made with another tokenizer than {held_out.dataset.location}; count the "
            "tokens of one that was made with the same"
        )
    counting = _named(progress, f"counting the tokens of {counted.location}")
    counting(0, counted.n_blocks)
    return Unigram(counted, counted.token_counts(progress=counting))


def _held_out(task: EvaluationRequest, models: list[Predictor]) -> HeldOut | None:
    if task.data is None:
        return None
    seq_len = task.seq_len or min([_SEQ_LEN, *(model.longest for model in models if model.longest)])
    for model in models:
        if model.longest is not None and model.longest < seq_len:
            raise UserError(
                f"{model.name} takes texts of {model.longest} tokens; give a --seq-len of no more than that"
            )
    held_out = HeldOut(Dataset(task.data), Masks(task.rows, seq_len, task.mask_rate))
    for model in models:
        check_vocabulary(model.name, model.tokenizer.vocabulary(), held_out.dataset)
    return held_out


def _settings(task: EvaluationRequest, held_out: HeldOut | None, counted: Dataset | None) -> dict[str, Any]:
    """Settings that determine the results, except the models."""
    settings: dict[str, Any] = {}
    if held_out:
        data = {"data": held_out.dataset.location, "fingerprint": held_out.dataset.manifest.fingerprint}
        settings["held_out"] = data | asdict(held_out.masks)
    if counted:
        settings["counts"] = {"data": counted.location, "fingerprint": counted.manifest.fingerprint}
    if task.pairs:
        settings["pairs"] = {"file": shown(task.pairs), "limit": task.limit}
    return settings


def _comparisons(measure_name: str, by_model: dict[str, UnitSums]) -> list[dict[str, Any]]:
    """Compare each model with the first one."""
    (first, (of_first, weights)), *others = by_model.items()
    return [
        {
            "model": name,
            "with": first,
            "measure": measure_name,
            "difference": float((of_model - of_first).sum() / weights.sum()),
            "interval": paired_bootstrap(of_model - of_first, weights),
        }
        for name, (of_model, _) in others
    ]


def paired_bootstrap(differences: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[float, float] | None:
    """95% percentile bootstrap interval of sum(differences) / sum(weights), from 2,000 resamples of the n units.

    Returns None for fewer than LEAST units. Units must be independent: merge related ones into one unit.
    Every call with the same n uses the same resamples. Source: Efron and Tibshirani, "An Introduction to the
    Bootstrap", 1993, chapter 13.
    """
    n, random = len(differences), np.random.default_rng(0)
    if n < LEAST:
        return None
    units = (random.integers(n, size=n) for _ in range(_RESAMPLES))
    ratios = [differences[chosen].sum() / weights[chosen].sum() for chosen in units]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def send_evaluation(values: Mapping[str, Any], target: Target) -> None:
    """Send the results of `evaluate`. Identical results are sent once. A failure becomes a warning."""
    send_results(target, [_tracked(name, values["settings"], results) for name, results in values["models"].items()])


def _tracked(name: str, settings: Mapping[str, Any], results: Mapping[str, Any]) -> TrackedResults:
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
