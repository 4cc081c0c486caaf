"""Causal language modelling: the state before each token predicts it (Radford et al., 2018)."""

import numpy as np

from pretrain.masking import IGNORED, Masked, Rows, Vocabulary, compact


class CausalTokens:
    """Causal objective: the state of the previous slot predicts each ordinary token; no token is masked.

    A document's first token is predicted from its [CLS], so no prediction crosses documents. Attention must be causal
    (EncoderShape.causal); otherwise a prediction could see its label.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary

    flags = 0

    def slots(self, seq_len: int) -> int:
        """The number of ordinary tokens in a full row of one document."""
        return seq_len - 2

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """Label all ordinary tokens; `rate` is not used."""
        tokens = rows.tokens.reshape(-1)
        predicted, used = compact(self.vocabulary.is_ordinary[rows.tokens], self.slots(rows.tokens.shape[1]))
        labels = np.where(used, tokens[predicted], IGNORED)
        # A row begins with [CLS] or padding, so the slot before an ordinary token is in the same document.
        return Masked(tokens, (predicted - used).reshape(-1), labels.reshape(-1))
