"""What the model sees in the place of a token that it predicts: the oracle of every faster path.

The 80/10/10 rule is BERT's (Devlin et al., 2019), without its usual slips: a random replacement is neither a special
token nor the original one.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pretrain.masking.draws import scaled, wide
from pretrain.masking.vocabulary import Vocabulary


@dataclass(frozen=True)
class Replacement:
    """What becomes of predicted tokens: shares of [MASK] and of random ids; the rest is seen as it is.

    per: what shares a fate: the tokens of a unit, of a word, or none. Random ids are drawn for each token by itself.
    """

    mask: float = 0.8
    random: float = 0.1
    per: Literal["unit", "word", "token"] = "unit"

    @property
    def bounds(self) -> tuple[int, int]:
        """Of draws of 16 bits, those below the first mean [MASK], and those from there to below the second random."""
        return round(self.mask * 2**16), round((self.mask + self.random) * 2**16)


def replace(
    original: NDArray[np.int64],
    used: NDArray[np.bool_],
    lag: NDArray[np.int64] | None,
    vocabulary: Vocabulary,
    replacement: Replacement,
    draws: NDArray[np.uint16],
) -> NDArray[np.int64]:
    """What is seen in the place of predicted tokens: [R, K].

    Args:
        original, used: [R, K] the predicted tokens of each row in order, and whether a place holds one.
        lag: [R, K] how many predictions before a token is the first of those whose fate it shares; None for none.
        draws: [R, 3 * K] 16-bit numbers: a fate for each prediction, then two halves of a random id for each.
    """
    n_places = original.shape[1]
    fate = draws[:, :n_places]
    if lag is not None:
        fate = np.take_along_axis(fate, np.arange(n_places) - lag, axis=1)
    to_mask, to_random = replacement.bounds
    seen = np.where(fate < to_mask, vocabulary.mask, original)
    row, number = np.nonzero((fate >= to_mask) & (fate < to_random) & used)
    pick = wide(draws[row[:, None], n_places + 2 * number[:, None] + np.arange(2)])[:, 0]
    seen[row, number] = _other(original[row, number], pick, vocabulary)
    return seen


def _other(original: NDArray[np.int64], pick: NDArray[np.int64], vocabulary: Vocabulary) -> NDArray[np.int64]:
    """An ordinary id other than the original, each as likely as any: [M], by 32-bit numbers [M]."""
    number = scaled(pick, len(vocabulary.ordinary_ids) - 1)
    return vocabulary.ordinary_ids[number + (number >= vocabulary.rank[original])]
