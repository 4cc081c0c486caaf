"""Causal language modelling: the state before each token predicts it (Radford et al., 2018)."""

import numpy as np
from numpy.typing import NDArray

from pretrain.config import OBJECTIVES, ObjectiveKind, View
from pretrain.masking import Masked, Rows, Vocabulary, labelled


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

    def predicted(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[R, S] the tokens to predict."""
        return self.vocabulary.is_ordinary[tokens]

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """Label the tokens to predict; `rate` is not used."""
        # A row begins with [CLS] or padding, so the slot before a predicted token is in the same document.
        tokens = rows.tokens
        return labelled(tokens, tokens, self.predicted(tokens), self.slots(tokens.shape[1]), lag=1)


OBJECTIVES.add(
    ObjectiveKind(
        name="clm",
        title="causal language modelling",
        predicts=lambda masking: "predicted | every token but special ones, from those before it",
        create=lambda masking, vocabulary, seed, purpose: CausalTokens(vocabulary),
        view=View.CAUSAL,
        lag=1,
        pipeline="text-generation",
        unread=("strategy", "rate", "replacement", "selection", "diffusion"),
    )
)
