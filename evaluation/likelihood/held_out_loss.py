"""Loss on held-out text under fixed masks.

The masks depend only on the data set, row length and rate, so all models predict the same tokens. A causal
model predicts these tokens from their left context; nothing is masked for it.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from evaluation.likelihood.predictors import Predictor, Stream
from pretrain.config import DataConfig, MaskingConfig
from pretrain.data import Batch, LaidOut, row_stream, unmasked_rows
from pretrain.masking import MaskedTokens, Vocabulary

_SEED = 0
_SLOTS = 8192  # of a stream


@dataclass(frozen=True)
class Masks:
    """Settings of the masks: mask `rate` of the tokens in the first `rows` rows of `seq_len` slots, all as [MASK]."""

    rows: int
    seq_len: int
    rate: float


class HeldOut:
    """Iterable over the batches of a held-out set. Every iteration gives the same batches."""

    def __init__(self, dataset: Dataset, masks: Masks):
        self.dataset, self.masks = dataset, masks
        self.vocabulary = Vocabulary.of(dataset.manifest.tokenizer)
        masking = MaskingConfig.model_validate(
            {"strategy": "token", "rate": masks.rate, "replacement": {"mask": 1.0, "random": 0.0}}
        )
        self._objective = MaskedTokens(masking, self.vocabulary, _SEED, "evaluate")
        if not dataset.n_blocks:
            raise UserError(f"{dataset.location} holds no document to evaluate on")

    def laid_out(self) -> Iterator[LaidOut]:
        """The rows before masking, some at a time."""
        masks, window_blocks = self.masks, DataConfig(train="-").window_blocks
        stream = row_stream(self.dataset, _SEED, window_blocks, "best_fit")
        with closing(stream):
            at_once = max(1, _SLOTS // masks.seq_len)
            yield from unmasked_rows(stream, self.vocabulary, masks.seq_len, masks.rows, at_once)

    def __iter__(self) -> Iterator[Batch]:
        for laid_out in self.laid_out():
            yield laid_out.masked(self._objective, self.masks.rate)


@dataclass(frozen=True)
class HeldOutAnswers:
    """A model's answers and the properties of its M predictions. All arrays are [M].

    loss float64, in nats. right bool. row: its number in the held-out set.
    """

    loss: NDArray[np.float64]
    right: NDArray[np.bool_]
    row: NDArray[np.int64]

    def by_row(self) -> NDArray[np.float64]:
        """Sums per row with predictions [3, rows]: loss, correct predictions, predictions."""
        _, row = np.unique(self.row, return_inverse=True)
        return np.stack([np.bincount(row, values) for values in (self.loss, self.right, np.ones(len(row)))])


def measure(
    held_out: HeldOut, predictor: Predictor, progress: Callable[[int, int], None] = lambda done, total: None
) -> HeldOutAnswers:
    """Collect a model's answers about all masked tokens.

    Args:
        progress: (rows done, rows requested; the data set may have fewer).

    Raises UserError if no token is masked.
    """
    parts, done = [], 0
    for batch in held_out:
        stream = Stream.of_batch(batch)
        row = done + stream.places // batch.seq_len
        answers = predictor.answers(unmasked(stream) if predictor.causal else stream)
        parts.append((-answers.log_probabilities, answers.right, row))
        done += len(batch.tokens) // batch.seq_len
        progress(done, held_out.masks.rows)
    measured = HeldOutAnswers(*map(np.concatenate, zip(*parts, strict=True)))
    if not len(measured.row):
        raise UserError(f"{held_out.dataset.location}: at a mask rate of {held_out.masks.rate:g} no token is predicted")
    return measured


def unmasked(stream: Stream) -> Stream:
    """The same predictions for a causal model: all tokens are there, and the state before each one predicts it."""
    tokens = stream.tokens.copy()
    tokens[stream.places] = stream.labels
    return replace(stream, tokens=tokens, places=stream.places - 1)


def held_out_results(measured: HeldOutAnswers) -> dict[str, Any]:
    """Loss (nats), perplexity and accuracy of all predictions, as JSON values."""
    loss = float(measured.loss.mean())
    return {
        "loss": loss,
        "masked_accuracy": float(measured.right.mean()),
        "predictions": len(measured.loss),
        "perplexity": float(np.exp(loss)),
        "rows": len(np.unique(measured.row)),
    }
