"""Translation as prefix language modelling: the target is predicted from left to right, given its source.

A document is [CLS] source [SEP] target [SEP] (Dong et al., "Unified language model pre-training", 2019; Raffel et al.,
"T5", 2020). Source tokens see each other. A state predicts the next token, the last [SEP] included: it ends a text.
"""

import numpy as np
from numpy.typing import NDArray

from pretrain.config import OBJECTIVES, ObjectiveKind, View
from pretrain.objectives.causal import CausalTokens


class PrefixTokens(CausalTokens):
    """Prefix objective: each ordinary token after the first [SEP] of a document is predicted, and its last [SEP].

    Attention must be of View.PREFIX. A document without a second text has no predictions.
    """

    def slots(self, seq_len: int) -> int:
        """The slots of a row after [CLS], one token and [SEP]."""
        return seq_len - 3

    def predicted(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[R, S] the targets."""
        is_sep = tokens == self.vocabulary.sep
        before = np.cumsum(is_sep, axis=1) - is_sep  # separators in the row before each slot
        begins = np.where(tokens == self.vocabulary.cls, before, 0)
        in_target = before - np.maximum.accumulate(begins, axis=1) == 1
        return in_target & (self.vocabulary.is_ordinary[tokens] | is_sep)


OBJECTIVES.add(
    ObjectiveKind(
        name="prefix",
        title="translation (prefix language modelling)",
        predicts=lambda masking: "predicted | the target, from its source and the tokens before",
        create=lambda masking, vocabulary, seed, purpose: PrefixTokens(vocabulary),
        view=View.PREFIX,
        lag=1,
        pipeline="feature-extraction",
        unread=("strategy", "rate", "replacement", "selection", "diffusion"),
        needs_pairs=True,
    )
)
