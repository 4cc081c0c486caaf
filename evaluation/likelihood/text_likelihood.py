"""Likelihood of all ordinary tokens of held-out rows: exact for causal models, an upper bound in nats for masked ones.

The bound is the negative evidence lower bound of absorbing-state masked diffusion (Sahoo et al., "Simple and effective
masked diffusion language models", NeurIPS 2024; Shi et al., "Simplified and generalized masked diffusion for discrete
data", NeurIPS 2024). It is the mean of the weighted loss of `DiffusionTokens` with uniform rates.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
    """For each row, float64 [R]: -log-likelihood or its estimated bound in nats, and the number of ordinary tokens.

    variance: of the estimate over the draws; 0 if it is exact.
    """

    nats: NDArray[np.float64]
    variance: NDArray[np.float64]
    tokens: NDArray[np.float64]

    def results(self, causal: bool) -> dict[str, Any]:
        """Nats a token with their standard error over the draws, and perplexity, as JSON values."""
        nats, variance, tokens = (float(values.sum()) for values in self)
        return {
            "value": "exact" if causal else "upper bound",
            "nats_per_token": nats / tokens,
            "standard_error": float(np.sqrt(variance)) / tokens,
            "perplexity": float(np.exp(nats / tokens)),
            "tokens": int(tokens),
        }


def row_likelihoods(
    held_out: HeldOut, predictor: Predictor, draws: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> RowLikelihoods:
    """Measure the likelihood of each row, or its bound.

    The draws of a row follow from its place in the data set alone, so all models see the same masks.

    Args:
        draws: masks a row of a masked model, an even number. Half of them estimate the bound with one draw in each of
            draws / 2 equal ranges of the rate. The other half does so independently: the difference gives the error.
        progress: (rows done, rows requested).
    """
    vocabulary, settings, ranges = held_out.vocabulary, DiffusionConfig(), draws // 2
    masks = [DiffusionTokens(vocabulary, settings, _SEED, f"likelihood {n}", (n // 2, ranges)) for n in range(draws)]
    objectives: Sequence[Objective] = [CausalTokens(vocabulary)] if predictor.causal else masks
    parts: list[NDArray[np.float64]] = []
    for rows in held_out.laid_out():
        nats = np.stack([_nats(predictor, rows.masked(objective, 1.0)) for objective in objectives])
        first, second = nats[::2].mean(axis=0), nats[::-2].mean(axis=0)  # of a causal model the same, the only one
        tokens = np.count_nonzero(vocabulary.is_ordinary[rows.rows.tokens], axis=1)
        parts.append(np.stack([(first + second) / 2, (first - second) ** 2 / 4, tokens]))
        progress(sum(part.shape[1] for part in parts), held_out.masks.rows)
    return RowLikelihoods(*np.concatenate(parts, axis=1))


def _nats(predictor: Predictor, batch: Batch) -> NDArray[np.float64]:
    """The weighted sum of -log p over the predictions of each row: [R]."""
    stream = Stream.of_batch(batch)
    weights = 1.0 if batch.weights is None else batch.weights[batch.labels != IGNORED]
    nats = -predictor.answers(stream).log_probabilities * weights
    return np.bincount(stream.places // batch.seq_len, nats, len(batch.tokens) // batch.seq_len).astype(np.float64)
