"""Masked diffusion: each row draws a mask rate, and the rate weights its predictions.

Sahoo et al., "Simple and effective masked diffusion language models", NeurIPS 2024 (arXiv:2406.07524).
"""

from dataclasses import replace

import numpy as np

from pretrain.config import OBJECTIVES, DiffusionConfig, ObjectiveKind
from pretrain.masking import IGNORED, Masked, Rows, Vocabulary, labelled, of_rows, random_subset
from pretrain.philox import derive_key


class DiffusionTokens:
    """The objective of masked diffusion. Every chosen token becomes [MASK].

    A row of n ordinary tokens draws a uniform rate t. k = ceil(t * n) of them are masked, every set of k with the same
    chance. The number is exact, not binomial. So weights n / k exist for every row and add up to n, and the weighted
    mean loss of a batch is an unbiased estimate of the negative evidence lower bound a token (Ou et al., "Your
    absorbing discrete diffusion secretly models the conditional distributions of clean data", ICLR 2025, section 3.3).

    Args:
        vocabulary: the tokenizer's ids. settings: weights.
        seed, purpose: they key every draw, see MaskedTokens.
    """

    flags = 0

    def __init__(self, vocabulary: Vocabulary, settings: DiffusionConfig, seed: int, purpose: str):
        self.vocabulary, self._settings = vocabulary, settings
        self._rate_key, self._key = (derive_key(seed, f"{purpose}-diffusion-{what}") for what in ("rates", "masks"))

    def slots(self, seq_len: int) -> int:
        """The number of ordinary tokens in a full row of one document."""
        return seq_len - 2

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """Mask rows at drawn rates; `rate` is not used."""
        tokens = rows.tokens
        ordinary = self.vocabulary.is_ordinary[tokens]
        n_ordinary = np.count_nonzero(ordinary, axis=1)
        rates = (of_rows(self._rate_key, rows.row_ids) + 0.5) / 2**32
        counts = np.clip(np.ceil(rates * n_ordinary).astype(np.int64), np.minimum(1, n_ordinary), n_ordinary)
        masked = random_subset(ordinary, counts, self._key, rows.row_ids)
        batch = labelled(np.where(masked, self.vocabulary.mask, tokens), tokens, masked, self.slots(tokens.shape[1]))
        inverse_rate = self._settings.weight == "inverse_rate"
        weights = n_ordinary / np.maximum(counts, 1) if inverse_rate else np.ones(len(tokens))
        of_places = np.where(batch.labels != IGNORED, np.repeat(weights, len(batch.labels) // len(weights)), 0)
        return replace(batch, weights=of_places.astype(np.float32))


OBJECTIVES.add(
    ObjectiveKind(
        name="diffusion",
        title="masked diffusion",
        predicts=lambda masking: "masking | token, uniform rates drawn for each row, all as [MASK]",
        create=lambda masking, vocabulary, seed, purpose: DiffusionTokens(vocabulary, masking.diffusion, seed, purpose),
        unread=("strategy", "rate", "replacement", "selection"),
    )
)
