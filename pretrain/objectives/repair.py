"""Cloze repair objective: mask the wrong tokens of a text and predict the right ones.

The data set marks these tokens. All of them, and no others, become [MASK]. None stays unchanged or becomes a random
token, because the right token is not in the input when the model repairs a text.
"""

import numpy as np

from pretrain.masking import IGNORED, Masked, Rows, Vocabulary
from pretrain.masking.draws import of_columns
from pretrain.masking.rows import TARGET, compact
from pretrain.masking.selection import count, select_tokens
from pretrain.philox import derive_key


class RepairObjective:
    """The objective of cloze repair.

    Args:
        vocabulary: the tokenizer's ids.
        rate: the largest share of a full row's ordinary tokens to predict; it sizes the arrays.
        seed: keys every draw.
        purpose: draws of two purposes ("train", "valid") are independent.
    """

    marks = TARGET

    def __init__(self, vocabulary: Vocabulary, rate: float, seed: int, purpose: str):
        self.vocabulary, self._rate = vocabulary, rate
        self.key = derive_key(seed, f"{purpose}-repairs")

    def slots(self, seq_len: int) -> int:
        """Places for predictions in a full row with one [CLS] and one [SEP]."""
        return _places(self._rate, seq_len)

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """Mask and predict all targets; with more targets than places, predict a uniformly random part.

        Targets that are special tokens, such as [UNK], are masked but not predicted.
        """
        tokens, seq_len = rows.tokens, rows.tokens.shape[1]
        targets = (rows.marks & TARGET) != 0
        wanted = targets & self.vocabulary.is_ordinary[tokens]
        counts = np.minimum(np.count_nonzero(wanted, axis=1), _places(rate, seq_len))
        predicted = select_tokens(wanted, counts, of_columns(self.key, rows.places, seq_len))
        positions, used = compact(predicted, self.slots(seq_len))
        labels = np.where(used, tokens.reshape(-1)[positions], IGNORED)
        seen = np.where(targets, self.vocabulary.mask, tokens)
        return Masked(seen.reshape(-1), positions.reshape(-1), labels.reshape(-1))


def _places(rate: float, seq_len: int) -> int:
    return max(1, int(count(rate, seq_len - 2)))
