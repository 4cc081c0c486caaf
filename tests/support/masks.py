"""Masking in tests: objectives and rows with few words."""

from typing import Any

import numpy as np

from pretrain.config import MaskingConfig
from pretrain.masking import MaskedTokens, Rows, TokenFlag, Vocabulary


def token_masking(
    vocabulary: Vocabulary,
    rate: float = 0.15,
    mask: float = 0.8,
    random: float = 0.1,
    seed: int = 0,
    purpose: str = "train",
    per: str = "unit",
    **settings: Any,
) -> MaskedTokens:
    """Masking of single tokens, or with further settings of the section `masking`."""
    shares = {"mask": mask, "random": random, "per": per}
    masking = MaskingConfig.model_validate({"rate": rate, "replacement": shares} | settings)
    return MaskedTokens(masking, vocabulary, seed, purpose)


def rows_of(tokens: np.ndarray, word_starts: np.ndarray | None = None) -> Rows:
    """Rows number 0, 1, ... of the first window of epoch 0; each token begins a word if nothing else is said."""
    places = np.zeros((len(tokens), 3), dtype=np.int64)
    places[:, 2] = np.arange(len(tokens))
    starts = np.ones(tokens.shape, dtype=bool) if word_starts is None else word_starts
    return Rows(tokens, places, starts * np.uint8(TokenFlag.WORD_START))
