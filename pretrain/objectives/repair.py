"""Cloze repair: what is wrong in a text is masked, and the right tokens are predicted in its place.

The data set says which tokens those are. All of them are seen as [MASK], and nothing else
is; none is seen as it is or as another token, for a model that repairs is never shown the right one.
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
        rate: the largest share of a full row's ordinary tokens that is predicted: arrays have room for it.
        seed: keys every draw.
        purpose: draws of two purposes ("train", "valid") are independent.
    """

    marks = TARGET

    def __init__(self, vocabulary: Vocabulary, rate: float, seed: int, purpose: str):
        self.vocabulary, self._rate = vocabulary, rate
        self.key = derive_key(seed, f"{purpose}-repairs")

    def slots(self, seq_len: int) -> int:
        """The share of a full row, [CLS] and [SEP] being all its specials."""
        return _places(self._rate, seq_len)

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """Mask all targets, and predict them; of a row's targets beyond its places, a uniformly random part.

        Targets that are special tokens, as unknown ones are, are masked and not predicted.
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
