"""Masked diffusion: each row draws a mask rate, and the rate weights its predictions.

Sahoo et al., "Simple and effective masked diffusion language models", NeurIPS 2024 (arXiv:2406.07524).
"""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pretrain.config import OBJECTIVES, DiffusionConfig, MaskingConfig, ObjectiveKind
from pretrain.masking import IGNORED, Masked, Rows, Vocabulary, labelled, of_rows, random_subset
from pretrain.philox import derive_key


class DiffusionTokens:
    """The objective of masked diffusion. Every chosen token becomes [MASK].

    A row of n ordinary tokens draws a rate t. k = ceil(t * n) of them are masked, every set of k with the same chance.
    The number is exact, not binomial. So weights n / k exist for every row and add up to n, and for uniform rates the
    weighted mean loss of a batch is an unbiased estimate of the negative evidence lower bound a token (Ou et al., "Your
    absorbing discrete diffusion secretly models the conditional distributions of clean data", ICLR 2025, section 3.3).

    Args:
        vocabulary: the tokenizer's ids. settings: distribution of the rates, and weights.
        seed, purpose: they key every draw, see MaskedTokens.
        part: (i, m): draw rates in range i of the m equally likely ones of the distribution; for stratified estimates.
    """

    flags = 0

    def __init__(
        self, vocabulary: Vocabulary, settings: DiffusionConfig, seed: int, purpose: str, part: tuple[int, int] = (0, 1)
    ):
        self.vocabulary, self._settings, self._part = vocabulary, settings, part
        self._rate_key, self._key = (derive_key(seed, f"{purpose}-diffusion-{what}") for what in ("rates", "masks"))

    def slots(self, seq_len: int) -> int:
        """The number of ordinary tokens in a full row of one document."""
        return seq_len - 2

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """Mask rows at drawn rates, or at `rate` during `settings.start`, where it is below 1."""
        tokens, settings = rows.tokens, self._settings
        ordinary = self.vocabulary.is_ordinary[tokens]
        n_ordinary = np.count_nonzero(ordinary, axis=1)
        uniform = (self._part[0] + (of_rows(self._rate_key, rows.row_ids) + 0.5) / 2**32) / self._part[1]
        rates, densities = drawn_rates(uniform, settings)
        if settings.start and rate < 1:
            rates, densities = np.full(len(tokens), rate), np.ones(len(tokens))
        counts = np.clip(np.ceil(rates * n_ordinary).astype(np.int64), np.minimum(1, n_ordinary), n_ordinary)
        masked = random_subset(ordinary, counts, self._key, rows.row_ids)
        made = labelled(np.where(masked, self.vocabulary.mask, tokens), tokens, masked, self.slots(tokens.shape[1]))
        weights = densities**-settings.density_power
        if settings.weight == "inverse_rate":
            weights = weights * n_ordinary / np.maximum(counts, 1)
        of_places = np.where(made.labels != IGNORED, np.repeat(weights, len(made.labels) // len(weights)), 0)
        return replace(made, weights=of_places.astype(np.float32))


def drawn_rates(uniform: NDArray[np.float64], settings: DiffusionConfig) -> NDArray[np.float64]:
    """Rates from uniform numbers [R] in (0, 1) by the inverse of their distribution, and their densities: [2, R].

    Without modes, rates are uniform. Otherwise a number chooses a mode by its share, and then a rate of the mode's
    normal distribution, cut at 0 and 1; the density is that in the mode (Kosmopoulou et al., "Masked diffusion language
    models with frequency-informed training", 2025, arXiv:2509.05056).
    """
    found, start, modes = np.stack([uniform, np.ones_like(uniform)]), 0.0, settings.modes
    for mode in modes:
        end = 1.0 if mode is modes[-1] else start + mode.share / sum(mode.share for mode in modes)
        chosen, normal = (uniform >= start) & (uniform < end), NormalDist(mode.mean, mode.std)
        below, inside = normal.cdf(0), normal.cdf(1) - normal.cdf(0)
        within = np.maximum((uniform[chosen] - start) / (end - start), 2.0**-33)
        rates = [normal.inv_cdf(below + inside * one) for one in within.tolist()]
        found[:, chosen] = rates, [normal.pdf(rate) / inside for rate in rates]
        start = end
    return found


def _predicted(masking: MaskingConfig) -> str:
    modes = " and ".join(f"{mode.mean:.0%} ± {mode.std:.0%}" for mode in masking.diffusion.modes)
    return f"masking | token, {modes or 'uniform'} rates drawn for each row, all as [MASK]"


def _of(masking: MaskingConfig, vocabulary: Vocabulary, seed: int, purpose: str) -> DiffusionTokens:
    return DiffusionTokens(vocabulary, masking.diffusion, seed, purpose)


OBJECTIVES.add(
    ObjectiveKind(
        name="diffusion",
        title="masked diffusion",
        predicts=_predicted,
        create=_of,
        unread=("strategy", "rate", "replacement", "selection"),
    )
)
