"""Evaluate several models on the same held-out text and minimal pairs, and compare them with the first one."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from data_prep.common.urls import shown
from data_prep.format import Dataset
from evaluation.likelihood.held_out_loss import HeldOut, HeldOutAnswers, Masks, StrategyName, held_out_results, measure
from evaluation.likelihood.minimal_pairs import credits, pair_results, read_pairs, units
from evaluation.likelihood.predictors import Predictor, Unigram, open_model, open_tokenizer
from evaluation.likelihood.sentence_scores import Form, check_lengths, sentence_scores
from evaluation.likelihood.text_likelihood import RowLikelihoods, row_likelihoods
from pretrain.export import check_vocabulary, load_tokenizer

_SEQ_LEN = 128
_RESAMPLES = 2000
LEAST = 20  # units of a bootstrap; percentiles of fewer are far too narrow

EvaluationProgress = Callable[[int, int, str], None]
"""(units done, units in total, name of the current task)"""


@dataclass(frozen=True)
class EvaluationRequest:
    """Models, data and settings of one evaluation.

    models: folders of models or runs. baseline: add a unigram model after them.
    data: the held-out data set. counts: the data set for token counts; default: `data`.
    rows, seq_len, mask_rate, strategy: see Masks. Default seq_len: 128, or the shortest limit of the models.
    likelihood: draws of the bound of masked models, see row_likelihoods; None: measure no likelihoods of all tokens.
    pairs: a file, see minimal_pairs.py. form: the score of masked models. limit: pairs per UID.
    """

    models: tuple[str, ...]
    baseline: bool = False
    data: str | None = None
    counts: str | None = None
    rows: int = 1000
    seq_len: int | None = None
    mask_rate: float = 0.15
    strategy: StrategyName = "token"
    likelihood: int | None = None
    pairs: str | None = None
    form: Form = "original"
    limit: int | None = None


def evaluate(task: EvaluationRequest, progress: EvaluationProgress) -> dict[str, Any]:
    """Return all results as JSON values (docs/evaluation.md).

    Raises UserError for an unusable model, data set or file, or for a model and data set with different tokenizers.
    """
    pairs = read_pairs(task.pairs, task.limit) if task.pairs else []
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    models: list[Predictor] = [open_model(Path(name)) for name in task.models]
    held_out = _held_out(task, models)
    for model in models:
        if model.longest is not None:
            check_lengths(model.name, model.tokenizer, model.longest, texts)
    counted = Dataset(task.counts) if task.counts else held_out.dataset if held_out else None
    counts = None
    if counted:
        if held_out and counted.manifest.tokenizer.sha256 != held_out.dataset.manifest.tokenizer.sha256:
            raise UserError(
                f"{counted.location} was made with another tokenizer than {held_out.dataset.location}; count the "
                "tokens of one that was made with the same"
            )
        counting = _named(progress, f"counting the tokens of {counted.location}")
        counting(0, counted.n_blocks)
        counts = counted.token_counts(progress=counting)
        models += [Unigram(counted, counts)] if task.baseline else []
    answers: dict[str, HeldOutAnswers] = {}
    likelihoods: dict[str, RowLikelihoods] = {}
    credit: dict[str, NDArray[np.float64]] = {}
    results: dict[str, dict[str, Any]] = {model.name: {} for model in models}
    for model in models:
        if held_out:
            assert counts is not None  # default of `counts`: the held-out text
            answers[model.name] = measure(held_out, model, _named(progress, f"held-out text: {model.name}"))
            results[model.name]["held_out"] = held_out_results(answers[model.name], counts)
        if held_out and task.likelihood:
            shown_progress = _named(progress, f"likelihood of all tokens: {model.name}")
            likelihoods[model.name] = row_likelihoods(held_out, model, task.likelihood, shown_progress)
            results[model.name]["likelihood"] = likelihoods[model.name].results(model.causal)
        if pairs:
            scoring = _named(progress, f"{len(pairs):,} pairs: {model.name}")
            scores = sentence_scores(model, texts, task.form, scoring)
            credit[model.name] = credits(scores[::2], scores[1::2])
            score = "log-likelihood" if model.causal else task.form
            results[model.name]["pairs"] = {"score": score, **pair_results(pairs, credit[model.name])}
    comparisons = []
    if answers:
        by_row = {name: of_model.by_row() for name, of_model in answers.items()}
        weights = next(iter(by_row.values()))[2]
        for name, (losses, *_) in by_row.items():
            interval = paired_bootstrap(losses, weights)
            results[name]["held_out"]["loss_interval"] = list(interval) if interval else None
        for number, measure_name in enumerate(("held_out.loss", "held_out.masked_accuracy")):
            comparisons += _comparisons(measure_name, {name: rows[number] for name, rows in by_row.items()}, weights)
    if likelihoods:
        nats = {name: of_model.nats for name, of_model in likelihoods.items()}
        comparisons += _comparisons("likelihood.nats_per_token", nats, next(iter(likelihoods.values())).tokens)
    if pairs:
        uid = units(pairs)
        by_uid = {name: np.bincount(uid, of_model).astype(np.float64) for name, of_model in credit.items()}
        comparisons += _comparisons("pairs.accuracy", by_uid, np.bincount(uid).astype(np.float64))
    return {"settings": _settings(task, held_out, counted), "models": results, "comparisons": comparisons}


def check_pairs(path: str, limit: int | None, tokenizer: Path, causal: bool, longest: int) -> None:
    """Raise UserError if a file of pairs cannot be read, or a model of `longest` tokens cannot take a sentence.

    Args:
        limit: per UID. tokenizer: folder of the model's tokenizer.
    """
    sentences = [text for pair in read_pairs(path, limit) for text in (pair.good, pair.bad)]
    check_lengths(path, open_tokenizer(load_tokenizer(tokenizer), tokenizer, causal), longest, sentences)


def _named(progress: EvaluationProgress, line: str) -> Callable[[int, int], None]:
    return lambda done, of: progress(done, of, line)


def _held_out(task: EvaluationRequest, models: list[Predictor]) -> HeldOut | None:
    if task.data is None:
        return None
    seq_len = task.seq_len or min([_SEQ_LEN, *(model.longest for model in models if model.longest)])
    for model in models:
        if model.longest is not None and model.longest < seq_len:
            raise UserError(
                f"{model.name} takes texts of {model.longest} tokens; give a --seq-len of no more than that"
            )
    held_out = HeldOut(Dataset(task.data), Masks(task.rows, seq_len, task.mask_rate, task.strategy))
    for model in models:
        check_vocabulary(model.name, model.tokenizer.vocabulary(), held_out.dataset)
    return held_out


def _settings(task: EvaluationRequest, held_out: HeldOut | None, counted: Dataset | None) -> dict[str, Any]:
    """Settings that determine the results, except the models."""
    found: dict[str, Any] = {}
    if held_out:
        data = {"data": held_out.dataset.location, "fingerprint": held_out.dataset.manifest.fingerprint}
        found["held_out"] = data | asdict(held_out.masks)
        found |= {"likelihood": {"draws": task.likelihood}} if task.likelihood else {}
    if counted:
        found["counts"] = {"data": counted.location, "fingerprint": counted.manifest.fingerprint}
    if task.pairs:
        found["pairs"] = {"file": shown(task.pairs), "limit": task.limit}
    return found


def _comparisons(
    measure_name: str, sums: dict[str, NDArray[np.float64]], weights: NDArray[np.float64]
) -> list[dict[str, Any]]:
    """Compare each model with the first one. sums, weights [U]: of each independent unit; sums by model."""
    (first, of_first), *others = sums.items()
    found = []
    for name, of_model in others:
        interval = paired_bootstrap(of_model - of_first, weights)
        found.append(
            {
                "model": name,
                "with": first,
                "measure": measure_name,
                "difference": float((of_model - of_first).sum() / weights.sum()),
                "interval": list(interval) if interval else None,
            }
        )
    return found


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
