"""Replacement of predicted tokens in the model's input. This is the reference for every faster implementation.

The 80/10/10 rule is BERT's (Devlin et al., 2019). A random replacement is never a special token or the original one.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pretrain.masking.draws import scaled, wide
from pretrain.masking.vocabulary import Vocabulary


@dataclass(frozen=True)
class Replacement:
    """Shares of predicted tokens replaced by [MASK] and by random ids; the rest stays unchanged.

    per: the group that draws its replacement kind together: a unit, a word, or a single token. Random ids are drawn per
        token.
    """

    mask: float = 0.8
    random: float = 0.1
    per: Literal["unit", "word", "token"] = "unit"

    @property
    def bounds(self) -> tuple[int, int]:
        """Bounds for 16-bit draws: below the first means [MASK], below the second a random id."""
        return round(self.mask * 2**16), round((self.mask + self.random) * 2**16)


def replace(
    original: NDArray[np.int64],
    used: NDArray[np.bool_],
    lag: NDArray[np.int64] | None,
    vocabulary: Vocabulary,
    replacement: Replacement,
    draws: NDArray[np.uint16],
) -> NDArray[np.int64]:
    """The replacements of predicted tokens: [R, K].

    Args:
        original, used: [R, K] the predicted tokens of each row in order, and whether a place holds one.
        lag: [R, K] distance from a prediction back to the first of its fate group; None if each draws alone.
        draws: [R, 3 * K] 16-bit numbers: the replacement kind of each prediction, then two halves of its random id.
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
    """A uniform ordinary id other than the original: [M], from 32-bit numbers [M]."""
    number = scaled(pick, len(vocabulary.ordinary_ids) - 1)
    return vocabulary.ordinary_ids[number + (number >= vocabulary.rank[original])]
