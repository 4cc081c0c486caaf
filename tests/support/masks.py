"""Masking in tests: objectives and rows with few words."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from pretrain.masking import MaskedTokens, Rows, TokenFlag, Vocabulary
from pretrain.masking.masked_tokens import Replacement
from pretrain.masking.unit_weights import UnitWeights
from pretrain.masking.units import Strategy, TokenUnits


def token_masking(
    vocabulary: Vocabulary,
    rate: float = 0.15,
    mask: float = 0.8,
    random: float = 0.1,
    seed: int = 0,
    purpose: str = "train",
    strategies: Sequence[tuple[Strategy, float]] = ((TokenUnits(), 1.0),),
    per: Literal["unit", "word", "token"] = "unit",
    weights: UnitWeights | None = None,
) -> MaskedTokens:
    """Masking of single tokens, or by other strategies, with or without weights."""
    return MaskedTokens(vocabulary, strategies, rate, Replacement(mask, random, per), seed, purpose, weights)


def rows_of(tokens: np.ndarray, epoch: int = 0, word_starts: np.ndarray | None = None) -> Rows:
    """Rows number 0, 1, ... of the first window of an epoch; each token begins a word if nothing else is said."""
    places = np.zeros((len(tokens), 3), dtype=np.int64)
    places[:, 0], places[:, 2] = epoch, np.arange(len(tokens))
    starts = np.ones(tokens.shape, dtype=bool) if word_starts is None else word_starts
    return Rows(tokens, places, starts * np.uint8(TokenFlag.WORD_START))
