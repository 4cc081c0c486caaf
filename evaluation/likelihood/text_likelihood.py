"""Likelihood of all ordinary tokens of held-out rows: exact for causal models, an upper bound in nats for masked ones.

The bound is the negative evidence lower bound of absorbing-state masked diffusion (Sahoo et al., "Simple and effective
masked diffusion language models", NeurIPS 2024; Shi et al., "Simplified and generalized masked diffusion for discrete
data", NeurIPS 2024). It is the mean of the weighted loss of `DiffusionTokens` with uniform rates.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.likelihood.held_out_loss import HeldOut
from evaluation.likelihood.predictors import Predictor, Stream
from pretrain.config import DiffusionConfig
from pretrain.data import Batch
from pretrain.masking import IGNORED
from pretrain.objectives import CausalTokens, DiffusionTokens, Objective

_SEED = 0


@dataclass(frozen=True)
class RowLikelihoods:
    """For each row [R], float64.

    nats: -log-likelihood, or the estimate of its bound. variance: of this estimate over the draws; 0 if exact.
    tokens: ordinary tokens. exact: whether the model is causal.
    """

    nats: NDArray[np.float64]
    variance: NDArray[np.float64]
    tokens: NDArray[np.float64]
    exact: bool

    def results(self) -> dict[str, Any]:
        """Nats a token with their standard error over the draws, and perplexity, as JSON values."""
        tokens = self.tokens.sum()
        loss = float(self.nats.sum() / tokens)
        return {
            "value": "exact" if self.exact else "upper bound",
            "nats_per_token": loss,
            "standard_error": float(np.sqrt(self.variance.sum()) / tokens),
            "perplexity": float(np.exp(loss)),
            "tokens": int(tokens),
            "rows": len(self.tokens),
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
    settings, strata = DiffusionConfig(), draws // 2
    masks: list[Objective] = [
        DiffusionTokens(held_out.vocabulary, settings, _SEED, f"likelihood {draw}", (draw // 2, strata))
        for draw in range(draws)
    ]
    objectives = [CausalTokens(held_out.vocabulary)] * 2 if predictor.causal else masks
    parts, done = [], 0
    for rows in held_out.laid_out():
        nats = np.stack([_nats(predictor, rows.masked(objective, 1.0)) for objective in objectives])
        halves = nats[0::2].mean(axis=0), nats[1::2].mean(axis=0)
        tokens = np.count_nonzero(held_out.vocabulary.is_ordinary[rows.rows.tokens], axis=1)
        parts.append(np.stack([np.mean(halves, axis=0), np.square(halves[0] - halves[1]) / 4, tokens]))
        done += len(tokens)
        progress(done, held_out.masks.rows)
    nats, variance, n_tokens = np.concatenate(parts, axis=1)
    return RowLikelihoods(nats, variance, n_tokens, predictor.causal)


def _nats(predictor: Predictor, batch: Batch) -> NDArray[np.float64]:
    """The weighted sum of -log p over the predictions of each row: [R]."""
    used = batch.labels != IGNORED
    places, labels = batch.masked_positions[used], batch.labels[used]
    stream = Stream(batch.tokens, batch.positions, batch.cu_seqlens, batch.seq_len, places, labels)
    nats = -predictor.answers(stream).log_probabilities
    if batch.weights is not None:
        nats *= batch.weights[used]
    return np.bincount(places // batch.seq_len, nats, len(batch.tokens) // batch.seq_len).astype(np.float64)
