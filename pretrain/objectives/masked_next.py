"""Masked next-token prediction: a masked token is predicted by the state of the slot before it.

Causal language modelling predicts from there too, so both can share one head (BehnamGhader et al., "LLM2Vec", 2024;
Charpentier and Samuel, "GPT or BERT: why not both?", 2024).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pretrain.masking import IGNORED, Masked, MaskedTokens, Rows


class MaskedNextTokens:
    """The objective MaskedTokens with its predictions one slot earlier. Arguments: the masks."""

    def __init__(self, masks: MaskedTokens):
        self._masks = masks

    def with_factors(self, factors: NDArray[np.float32]) -> "MaskedNextTokens":
        """See MaskedTokens.with_factors."""
        return MaskedNextTokens(self._masks.with_factors(factors))

    flags = property(lambda self: self._masks.flags)

    def slots(self, seq_len: int) -> int:
        """See MaskedTokens.slots."""
        return self._masks.slots(seq_len)

    def __call__(self, rows: Rows, rate: float) -> Masked:
        masked = self._masks(rows, rate)
        # A row begins with [CLS] or padding, so the slot before an ordinary token is in the same document.
        return replace(masked, positions=masked.positions - (masked.labels != IGNORED).astype(np.int64))
