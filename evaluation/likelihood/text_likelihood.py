"""Likelihood of all ordinary tokens of held-out rows: exact for causal models, an upper bound in nats for masked ones.

The bound is the negative evidence lower bound of absorbing-state masked diffusion (Sahoo et al., "Simple and effective
masked diffusion language models", NeurIPS 2024; Shi et al., "Simplified and generalized masked diffusion for discrete
data", NeurIPS 2024). For a row of n tokens it is the mean of n / k times the sum of -log p over k masked tokens, given
the others, with k uniform in 1..n and every set of k tokens equally likely. It equals the integral over rates t of the
sum over tokens masked with probability t, times 1 / t, and has a lower variance (Ou et al., "Your absorbing discrete
diffusion secretly models the conditional distributions of clean data", ICLR 2025, section 3.3).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.likelihood.held_out_loss import HeldOut
from evaluation.likelihood.predictors import Predictor, Stream
from pretrain.data import LaidOut
from pretrain.masking import of_rows, random_subset
from pretrain.philox import derive_key

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
    parts, done = [], 0
    for laid_out in held_out.laid_out():
        rows = laid_out.rows
        ordinary = held_out.vocabulary.is_ordinary[rows.tokens]
        tokens = np.count_nonzero(ordinary, axis=1).astype(np.int64)
        if predictor.causal:
            halves = np.repeat(_nats(predictor, laid_out, ordinary, None)[None], 2, axis=0)
        else:
            halves = np.zeros((2, len(tokens)))
            for draw in range(draws):
                counts_key, key = (derive_key(_SEED, f"likelihood-{what} {draw}") for what in ("counts", "masks"))
                # A uniform number of the range draw // 2 out of draws / 2, as a whole number of 2**-32.
                uniform = (draw // 2 << 32) + of_rows(counts_key, rows.row_ids)
                counts = np.minimum(1 + uniform * tokens // (draws // 2 << 32), tokens)
                masked = random_subset(ordinary, counts, key, rows.row_ids)
                nats = _nats(predictor, laid_out, masked, held_out.vocabulary.mask)
                halves[draw % 2] += nats * tokens / np.maximum(counts, 1) / (draws // 2)
        parts.append(np.stack([halves.mean(axis=0), np.square(halves[0] - halves[1]) / 4, tokens]))
        done += len(tokens)
        progress(done, held_out.masks.rows)
    nats, variance, n_tokens = np.concatenate(parts, axis=1)
    return RowLikelihoods(nats, variance, n_tokens, predictor.causal)


def _nats(
    predictor: Predictor, laid_out: LaidOut, predicted: NDArray[np.bool_], mask: int | None
) -> NDArray[np.float64]:
    """Sum of -log p over the predicted tokens of each row [R]; they are replaced by `mask`, if any."""
    tokens = laid_out.rows.tokens
    seen = tokens if mask is None else np.where(predicted, mask, tokens)
    slots = np.flatnonzero(predicted)
    bounds = np.concatenate([[0], laid_out.ends]).astype(np.int32)
    labels, places = tokens.reshape(-1)[slots], slots - predictor.causal
    stream = Stream(seen.reshape(-1), laid_out.positions, bounds, tokens.shape[1], places, labels)
    log_probabilities = predictor.answers(stream).log_probabilities
    return np.bincount(slots // tokens.shape[1], -log_probabilities, minlength=len(tokens)).astype(np.float64)
