"""Cloze repair: the tokens that a wrong text has not are masked and predicted."""

import numpy as np

from pretrain.config import OBJECTIVES, MaskingConfig, ObjectiveKind
from pretrain.masking import Masked, Rows, TokenFlag, Vocabulary, count, labelled, largest_mask_rate, random_subset
from pretrain.philox import derive_key


class RepairObjective:
    """The objective of cloze repair.

    Args:
        masking: the settings; the largest rate sizes the arrays.
        vocabulary: the tokenizer's ids.
        seed: keys every draw.
        purpose: draws of two purposes ("train", "valid") are independent.
    """

    flags = TokenFlag.TARGET

    def __init__(self, masking: MaskingConfig, vocabulary: Vocabulary, seed: int, purpose: str):
        self.vocabulary, self._rate = vocabulary, largest_mask_rate(masking)
        self.key = derive_key(seed, f"{purpose}-repairs")

    def slots(self, seq_len: int) -> int:
        """Places for predictions in a full row with one [CLS] and one [SEP]."""
        return max(1, int(count(self._rate, seq_len - 2)))

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """Mask and predict all targets; with more targets than places, predict a uniformly random part.

        Targets that are special tokens, such as [UNK], are masked but not predicted.
        """
        tokens, seq_len, targets = rows.tokens, rows.tokens.shape[1], rows.targets
        wanted = targets & self.vocabulary.is_ordinary[tokens]
        counts = np.minimum(np.count_nonzero(wanted, axis=1), max(1, int(count(rate, seq_len - 2))))
        predicted = random_subset(wanted, counts, self.key, rows.row_ids)
        return labelled(np.where(targets, self.vocabulary.mask, tokens), tokens, predicted, self.slots(seq_len))


OBJECTIVES.add(
    ObjectiveKind(
        name="repair",
        title="cloze repair",
        predicts=lambda masking: (
            f"masking | what the wrong text has not (cloze repair), at most {masking.rate_text} of tokens"
        ),
        create=RepairObjective,
        unread=("strategy", "replacement", "selection", "diffusion"),
        needs_targets=True,
    )
)
