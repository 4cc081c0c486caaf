"""Causal language modelling: each token is predicted from those before it. The control that MLM is compared with."""

import numpy as np

from pretrain.masking import IGNORED, Masked, Rows, Vocabulary
from pretrain.masking.rows import compact


class CausalTokens:
    """The causal objective: every ordinary token is predicted by the state of the slot before it, and none is masked.

    A document's first token is predicted from its [CLS], so no prediction crosses documents. Attention must be causal
    (EncoderShape.causal), or a prediction would see its answer.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary

    @property
    def marks(self) -> int:
        return 0

    def slots(self, seq_len: int) -> int:
        """The ordinary tokens of a full row of one document."""
        return seq_len - 2

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """`rate` is not used: all ordinary tokens are predicted."""
        tokens = rows.tokens.reshape(-1)
        predicted, used = compact(self.vocabulary.is_ordinary[rows.tokens], self.slots(rows.tokens.shape[1]))
        labels = np.where(used, tokens[predicted], IGNORED)
        # A row begins with [CLS] or padding, so the slot before an ordinary token is one of the same document.
        return Masked(tokens, (predicted - used).reshape(-1), labels.reshape(-1))
