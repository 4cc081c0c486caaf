"""Likelihood of all ordinary tokens of held-out rows: exact for causal models, an upper bound in nats for masked ones.

The bound is the negative evidence lower bound of absorbing-state masked diffusion (Sahoo et al., "Simple and effective
masked diffusion language models", NeurIPS 2024; Shi et al., "Simplified and generalized masked diffusion for discrete
data", NeurIPS 2024). It is the mean of the weighted loss of `DiffusionTokens` with uniform rates.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluation.likelihood.held_out_loss import HeldOut
from evaluation.likelihood.predictors import Predictor, Stream
from pretrain.config import DiffusionConfig
from pretrain.data import Batch
from pretrain.masking import IGNORED
from pretrain.objectives import CausalTokens, DiffusionTokens, Objective

_SEED = 0


class RowLikelihoods(NamedTuple):
    """For each row, float64 [R]: -log-likelihood or its estimated bound in nats, and the number of ordinary tokens."""

    nats: NDArray[np.float64]
    tokens: NDArray[np.float64]


def row_likelihoods(held_out: HeldOut, predictor: Predictor, draws: int) -> RowLikelihoods:
    """Measure the likelihood of each row, or its bound.

    The draws of a row follow from its place in the data set alone, so all models see the same masks.

    Args:
        draws: masks a row of a masked model, each with its own uniform rate.
    """
    vocabulary = held_out.vocabulary
    masks = [DiffusionTokens(vocabulary, DiffusionConfig(), _SEED, f"likelihood {n}") for n in range(draws)]
    objectives: Sequence[Objective] = [CausalTokens(vocabulary)] if predictor.causal else masks
    parts: list[NDArray[np.float64]] = []
    for rows in held_out.laid_out():
        nats = np.stack([_nats(predictor, rows.masked(objective, 1.0)) for objective in objectives])
        parts.append(np.stack([nats.mean(axis=0), np.count_nonzero(vocabulary.is_ordinary[rows.rows.tokens], axis=1)]))
    return RowLikelihoods(*np.concatenate(parts, axis=1))


def _nats(predictor: Predictor, batch: Batch) -> NDArray[np.float64]:
    """The weighted sum of -log p over the predictions of each row: [R]."""
    stream = Stream.of_batch(batch)
    weights = 1.0 if batch.weights is None else batch.weights[batch.labels != IGNORED]
    nats = -predictor.answers(stream).log_probabilities * weights
    return np.bincount(stream.places // batch.seq_len, nats, len(batch.tokens) // batch.seq_len).astype(np.float64)
