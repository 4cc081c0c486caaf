"""What masking is given, and what it gives back."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

IGNORED = -100  # the label of a slot without a prediction, as in torch.nn.functional.cross_entropy

# Bits of a mark, which tells of a token what its id does not.
WORD_START = 1  # it begins a word
TARGET = 2  # it is to be predicted (cloze repair)


@dataclass(frozen=True)
class Rows:
    """Whole rows of R x S slots, before masking.

    tokens [R, S] int64: ids, specials and padding included.
    places [R, 3] int64: (source and epoch, window, row), which identify a row of the stream; all draws are keyed by it.
    marks [R, S] uint8: bits of WORD_START and TARGET, as far as the objective needs them.
    """

    tokens: NDArray[np.int64]
    places: NDArray[np.int64]
    marks: NDArray[np.uint8]


@dataclass(frozen=True)
class ToMask:
    """What the device needs to mask rows by itself (pretrain.masking.gpu_masking).

    units [R, S] uint8: pretrain.masking.masked_tokens.Units.bits; None where each token is a unit.
    places [R, 3] int64: see Rows.
    rate: pretrain.masking.selection.fixed of the rate.
    """

    units: NDArray[np.uint8] | None
    places: NDArray[np.int64]
    rate: int


@dataclass(frozen=True)
class Masked:
    """A stream of N = R * S slots with room for K = R * slots predictions.

    tokens [N] int64: what the model sees.
    positions [K] int64: the slots of the stream whose states predict, as many places for each row, row after row, in
        increasing order within a row; places that are not used come last, and point at their row's first slot.
    labels [K] int64: the ids that are predicted there; IGNORED in places that are not used.
    later: where the device is to mask: tokens are then as they were, and there are no positions and labels.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]
    later: ToMask | None = None


class Objective(Protocol):
    """What is predicted in a row: a pure function of the row and the rate."""

    @property
    def marks(self) -> int:
        """Bits of the marks that it needs."""
        ...

    def slots(self, seq_len: int) -> int:
        """The places for predictions that a row of `seq_len` slots has."""
        ...

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """Mask rows; `rate` is the share of their ordinary tokens that is predicted."""
        ...


def compact(predicted: NDArray[np.bool_], slots: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The tokens that are predicted, in arrays of constant shape, in increasing order.

    Args:
        predicted: [R, S] `slots` a row at most.
        slots: K, places a row.

    Returns:
        positions [R, K] int64: their slots in the stream; the row's first slot in places that are not used.
        used [R, K] bool: whether a place is; in each row the first ones are.
    """
    n_rows, seq_len = predicted.shape
    used = np.arange(slots) < np.count_nonzero(predicted, axis=1)[:, None]
    positions = np.repeat(np.arange(n_rows) * seq_len, slots).reshape(n_rows, slots)
    positions[used] = np.flatnonzero(predicted)
    return positions, used
