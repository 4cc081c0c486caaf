"""Evaluate several models on the same held-out text and minimal pairs, and compare them with the first one."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import UserError
from data_prep.format import Dataset
from data_prep.urls import shown
from evaluation.intervals import paired_bootstrap
from evaluation.likelihood.held_out_loss import HeldOut, HeldOutAnswers, Masks, StrategyName, held_out_results, measure
from evaluation.likelihood.minimal_pairs import (
    MinimalPair,
    credits,
    limited,
    pair_results,
    read_pairs,
    sentences,
    units,
)
from evaluation.likelihood.prediction_streams import Predictor
from evaluation.likelihood.predictors import open_model
from evaluation.likelihood.score_cache import KeptScores, model_identity
from evaluation.likelihood.sentence_scores import Form, check_lengths, sentence_scores
from evaluation.likelihood.sentence_tokenizer import SentenceTokenizer, open_tokenizer
from evaluation.likelihood.unigram import Unigram, token_counts
from pretrain.export import check_vocabulary, load_tokenizer, model_folder
from pretrain.masking import Vocabulary

UNIGRAM = "unigram"
_SEQ_LEN = 128

Progress = Callable[[int, int, str], None]
"""(units done, units in total, name of the current task)"""


@dataclass(frozen=True)
class EvaluationRequest:
    """Models, data and settings of one evaluation.

    models: folders of models or runs. baseline: add a unigram model after them.
    data: the held-out data set. counts: the data set for token counts; default: `data`.
    rows, seq_len, mask_rate, strategy: see Masks. Default seq_len: 128, or the shortest limit of the models.
    pairs: a file, see evaluation.likelihood.minimal_pairs. form: the score of masked models. limit: pairs per UID.
    """

    models: tuple[str, ...]
    baseline: bool
    data: str | None
    counts: str | None
    rows: int
    seq_len: int | None
    mask_rate: float
    strategy: StrategyName
    pairs: str | None
    form: Form
    limit: int | None


@dataclass(frozen=True)
class _Candidate:
    """A model to evaluate. name: as given by the user. folder: None for the unigram model."""

    name: str
    predictor: Predictor
    tokenizer: SentenceTokenizer
    longest: int | None
    folder: Path | None = None


def evaluate(task: EvaluationRequest, progress: Progress, keep: Path | None = None) -> dict[str, Any]:
    """Return all results as JSON values (docs/evaluation.md).

    keep: a cache file of sentence scores; cached scores are not recomputed.

    Raises:
        UserError: for an unusable model, data set or file, or for a model and data set with different tokenizers.
    """
    pairs = _pairs(task)
    candidates = [_opened(name) for name in task.models]
    held_out = _held_out(task, candidates)
    for one in candidates:
        if one.longest is not None:
            check_lengths(one.name, one.tokenizer, one.longest, sentences(pairs))
    counted = Dataset(task.counts) if task.counts else held_out.dataset if held_out else None
    counts = None
    if counted:
        _check_counted(counted, held_out)
        counts = token_counts(counted, _named(progress, f"counting the tokens of {counted.location}"))
        candidates += [_unigram(counted, counts)] if task.baseline else []
    measured: dict[str, HeldOutAnswers] = {}
    credit: dict[str, NDArray[np.float64]] = {}
    for one in candidates:
        if held_out:
            measured[one.name] = measure(held_out, one.predictor, _named(progress, f"held-out text: {one.name}"))
        if pairs:
            credit[one.name] = _credit(one, pairs, task.form, progress, keep)
    found: dict[str, dict[str, Any]] = {one.name: {} for one in candidates}
    for name, answers in measured.items():
        assert counts is not None  # default of `counts`: the held-out text
        found[name]["held_out"] = held_out_results(answers, counts)
    for one in candidates if pairs else ():
        score = "log-likelihood" if one.predictor.causal else task.form
        found[one.name]["pairs"] = {"score": score, **pair_results(pairs, credit[one.name])}
    return {
        "settings": _settings(task, held_out, counted),
        "models": found,
        "comparisons": [*_held_out_comparisons(measured), *_pair_comparisons(pairs, credit)],
    }


def _named(progress: Progress, line: str) -> Callable[[int, int], None]:
    return lambda done, of: progress(done, of, line)


def _pairs(task: EvaluationRequest) -> list[MinimalPair]:
    if task.pairs is None:
        return []
    pairs = read_pairs(task.pairs)
    return limited(pairs, task.limit) if task.limit else pairs


def _opened(name: str) -> _Candidate:
    folder = model_folder(Path(name))
    model = open_model(folder)
    return _Candidate(name, model, model.tokenizer, model.longest, folder)


def _held_out(task: EvaluationRequest, candidates: list[_Candidate]) -> HeldOut | None:
    if task.data is None:
        return None
    seq_len = task.seq_len or min([_SEQ_LEN, *(one.longest for one in candidates if one.longest)])
    for one in candidates:
        if one.longest is not None and one.longest < seq_len:
            raise UserError(f"{one.name} takes texts of {one.longest} tokens; give a --seq-len of no more than that")
    held_out = HeldOut(Dataset(task.data), Masks(task.rows, seq_len, task.mask_rate, task.strategy))
    for one in candidates:
        check_vocabulary(one.name, one.tokenizer.vocabulary(), held_out.dataset)
    return held_out


def _check_counted(counted: Dataset, held_out: HeldOut | None) -> None:
    if held_out and counted.manifest.tokenizer.sha256 != held_out.dataset.manifest.tokenizer.sha256:
        raise UserError(
            f"{counted.location} was made with another tokenizer than {held_out.dataset.location}; count the tokens of "
            "one that was made with the same"
        )


def _unigram(counted: Dataset, counts: NDArray[np.int64]) -> _Candidate:
    counted.check_tokenizer()
    folder = counted.tokenizer_path
    tokenizer = open_tokenizer(load_tokenizer(folder), folder, causal=True)
    return _Candidate(UNIGRAM, Unigram(counts, Vocabulary.of(counted.manifest.tokenizer)), tokenizer, None)


def _credit(
    one: _Candidate, pairs: list[MinimalPair], form: Form, progress: Progress, keep: Path | None
) -> NDArray[np.float64]:
    named = _named(progress, f"{len(pairs):,} pairs: {one.name}")
    kept = KeptScores(keep, f"{form} {model_identity(one.folder)}") if keep and one.folder else KeptScores()
    scores = sentence_scores(one.predictor, one.tokenizer, sentences(pairs), form, named, kept)
    kept.close()
    return credits(scores[::2], scores[1::2])


def _settings(task: EvaluationRequest, held_out: HeldOut | None, counted: Dataset | None) -> dict[str, Any]:
    """Settings that determine the results, except the models."""
    found: dict[str, Any] = {}
    if held_out:
        data = {"data": held_out.dataset.location, "fingerprint": held_out.dataset.manifest.fingerprint}
        found["held_out"] = data | asdict(held_out.masks)
    if counted:
        found["counts"] = {"data": counted.location, "fingerprint": counted.manifest.fingerprint}
    if task.pairs:
        found["pairs"] = {"file": shown(task.pairs), "limit": task.limit}
    return found


def _held_out_comparisons(measured: dict[str, HeldOutAnswers]) -> list[dict[str, Any]]:
    """Compare each model with the first one, paired by row."""
    sums = {name: of_model.by_row() for name, of_model in measured.items()}
    found = []
    for number, measure_name in enumerate(("held_out.loss", "held_out.masked_accuracy")):
        for name in list(sums)[1:]:
            first = next(iter(sums))
            differences = sums[name][number] - sums[first][number]
            found.append(_comparison(name, first, measure_name, differences, sums[first][2]))
    return found


def _pair_comparisons(pairs: list[MinimalPair], credit: dict[str, NDArray[np.float64]]) -> list[dict[str, Any]]:
    """Compare each model with the first one, paired by UID."""
    found, unit = [], units(pairs)
    number_of_pairs = np.bincount(unit).astype(np.float64)
    for name in list(credit)[1:]:
        first = next(iter(credit))
        differences = np.bincount(unit, credit[name] - credit[first]).astype(np.float64)
        found.append(_comparison(name, first, "pairs.accuracy", differences, number_of_pairs))
    return found


def _comparison(
    name: str, first: str, measure_name: str, differences: NDArray[np.float64], weights: NDArray[np.float64]
) -> dict[str, Any]:
    interval = paired_bootstrap(differences, weights)
    return {
        "model": name,
        "with": first,
        "measure": measure_name,
        "difference": float(differences.sum() / weights.sum()),
        "interval": list(interval) if interval else None,
    }
