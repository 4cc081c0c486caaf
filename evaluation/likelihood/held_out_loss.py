"""Loss on held-out text under fixed masks.

The masks depend only on the data set, row length, rate and strategy, so all models predict the same tokens. A causal
model predicts these tokens from their left context; nothing is masked for it.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from evaluation.likelihood.predictors import Predictor, Stream
from pretrain.config import MaskingConfig
from pretrain.data import Batch, FirstRows, LaidOut
from pretrain.masking import IGNORED, MaskedTokens, Rows, TokenFlag, Vocabulary

StrategyName = Literal["token", "whole_word", "span", "ngram"]
WORD_CLASSES = ("whole word", "first piece", "later piece")

_SEED = 0
_SLOTS = 8192  # of a stream


@dataclass(frozen=True)
class Masks:
    """Settings of the masks: mask `rate` of the tokens in the first `rows` rows of `seq_len` slots, all as [MASK]."""

    rows: int
    seq_len: int
    rate: float
    strategy: StrategyName


@dataclass(frozen=True)
class HeldOutQuestion:
    """A batch and the properties of its K predictions.

    batch: all its labels are used. row [K]: row number in the held-out set.
    word_class [K]: index in WORD_CLASSES. length [K]: tokens of the document piece, without specials.
    """

    batch: Batch
    row: NDArray[np.int64]
    word_class: NDArray[np.int64]
    length: NDArray[np.int64]

    def stream(self, causal: bool) -> Stream:
        batch, used = self.batch, self.batch.labels != IGNORED
        tokens, places, labels = batch.tokens, batch.masked_positions[used], batch.labels[used]
        if causal:
            tokens = tokens.copy()
            tokens[places] = labels
            places = places - 1
        return Stream(tokens, batch.positions, batch.cu_seqlens, batch.seq_len, places, labels)


class HeldOut:
    """Iterable over the questions of a held-out set. Every iteration gives the same questions."""

    def __init__(self, dataset: Dataset, masks: Masks):
        self.dataset, self.masks = dataset, masks
        self.vocabulary = Vocabulary.of(dataset.manifest.tokenizer)
        masking = MaskingConfig.model_validate(
            {"strategy": masks.strategy, "rate": masks.rate, "replacement": {"mask": 1.0, "random": 0.0}}
        )
        self._objective = MaskedTokens.of(masking, self.vocabulary, _SEED, "evaluate")
        if not dataset.n_blocks:
            raise UserError(f"{dataset.location} holds no document to evaluate on")

    def laid_out(self) -> Iterator[LaidOut]:
        """The rows before masking, some at a time."""
        masks = self.masks
        with closing(
            FirstRows(self.dataset, self.vocabulary, masks.seq_len, _SEED, flags=TokenFlag.WORD_START)
        ) as first:
            yield from first.take(masks.rows, at_once=max(1, _SLOTS // masks.seq_len))

    def __iter__(self) -> Iterator[HeldOutQuestion]:
        done = 0
        for laid_out in self.laid_out():
            batch = laid_out.masked(self._objective, self.masks.rate)
            yield _question(batch, laid_out.rows, self.vocabulary.is_ordinary, done)
            done += len(laid_out.rows.tokens)


def _question(batch: Batch, rows: Rows, is_ordinary: NDArray[np.bool_], first_row: int) -> HeldOutQuestion:
    places = batch.masked_positions[batch.labels != IGNORED]
    begins = rows.word_starts.reshape(-1)
    ends_before = begins | ~is_ordinary[rows.tokens.reshape(-1)]  # a row ends with [SEP] or padding
    word_class = np.where(begins[places], np.where(ends_before[places + 1], 0, 1), 2)
    bounds = batch.cu_seqlens.astype(np.int64)
    document = np.searchsorted(bounds, places, side="right") - 1
    return HeldOutQuestion(batch, first_row + places // batch.seq_len, word_class, np.diff(bounds)[document] - 2)


@dataclass(frozen=True)
class HeldOutAnswers:
    """A model's answers and the properties of its M predictions. All arrays are [M].

    loss float64, in nats. right bool. label: the correct token. row, word_class, length: see Question.
    """

    loss: NDArray[np.float64]
    right: NDArray[np.bool_]
    label: NDArray[np.int64]
    row: NDArray[np.int64]
    word_class: NDArray[np.int64]
    length: NDArray[np.int64]

    def by_row(self) -> NDArray[np.float64]:
        """Sums per row with predictions [3, rows]: loss, correct predictions, predictions."""
        _, row = np.unique(self.row, return_inverse=True)
        return np.stack([np.bincount(row, values) for values in (self.loss, self.right, np.ones(len(row)))])


def measure(
    held_out: HeldOut, predictor: Predictor, progress: Callable[[int, int], None] = lambda done, total: None
) -> HeldOutAnswers:
    """Collect a model's answers to all questions.

    Args:
        progress: (rows done, rows requested; the data set may have fewer).

    Raises UserError if no token is masked.
    """
    parts: list[HeldOutAnswers] = []
    done = 0
    for question in held_out:
        stream = question.stream(predictor.causal)
        answers = predictor.answers(stream)
        known = question.row, question.word_class, question.length
        parts.append(HeldOutAnswers(-answers.log_probabilities, answers.right, stream.labels, *known))
        done = max(done, int(question.row.max(initial=-1)) + 1)  # a part may mask nothing
        progress(done, held_out.masks.rows)
    if not sum(len(part.label) for part in parts):
        raise UserError(f"{held_out.dataset.location}: at a mask rate of {held_out.masks.rate:g} no token is predicted")
    return HeldOutAnswers(
        *(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(HeldOutAnswers))
    )


def held_out_results(measured: HeldOutAnswers, counts: NDArray[np.int64]) -> dict[str, Any]:
    """Loss (nats), perplexity and accuracy of all predictions and of groups of them, as JSON values.

    Args:
        counts: [vocab_size] token counts that define frequent and rare tokens.
    """
    frequency = np.searchsorted(10 ** np.arange(18), counts[measured.label], side="right")
    length = np.log2(np.maximum(measured.length, 1)).astype(np.int64)
    found = _figures(measured, np.ones(len(measured.loss), dtype=np.bool_))
    return found | {
        "perplexity": float(np.exp(found["loss"])),
        "rows": len(np.unique(measured.row)),
        "by_frequency": _parts(measured, frequency, lambda n: _range(10 ** (n - 1), 10**n - 1) if n else "0"),
        "by_word_class": _parts(measured, measured.word_class, lambda n: WORD_CLASSES[n]),
        "by_length": _parts(measured, length, lambda n: _range(2**n, 2 ** (n + 1) - 1)),
    }


def _parts(measured: HeldOutAnswers, of: NDArray[np.int64], name: Callable[[int], str]) -> dict[str, Any]:
    return {name(number): _figures(measured, of == number) for number in np.unique(of).tolist()}


def _figures(measured: HeldOutAnswers, chosen: NDArray[np.bool_]) -> dict[str, Any]:
    return {
        "loss": float(measured.loss[chosen].mean()),
        "masked_accuracy": float(measured.right[chosen].mean()),
        "predictions": int(chosen.sum()),
    }


def _range(low: int, high: int) -> str:
    return f"{low}-{high}" if high > low else f"{low}"
