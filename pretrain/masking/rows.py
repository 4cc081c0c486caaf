"""Input and output types of masking: rows and masked rows."""

from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from data_prep.format import TokenizerInfo
from pretrain.config import View

IGNORED = -100  # the label of a slot without a prediction, as in torch.nn.functional.cross_entropy


class TokenFlag(IntFlag):
    """Flag bits of a token: it begins a word; it is to be predicted (cloze repair)."""

    WORD_START = 1
    TARGET = 2


@dataclass(frozen=True)
class Vocabulary:
    """size counts every id, added tokens included; special_ids are never selected and never drawn.

    tokenizer_sha256: digest of the tokenizer, as in a data set's manifest.
    """

    size: int
    pad: int
    cls: int
    sep: int
    mask: int
    special_ids: frozenset[int]
    tokenizer_sha256: str = ""

    @classmethod
    def of(cls, tokenizer: TokenizerInfo) -> "Vocabulary":
        """The vocabulary of a data set.

        Raises UserError if a special token for masking or packing is missing or the same as another, or there are too
        few ordinary tokens.
        """
        named = {name: tokenizer.special_ids.get(name, -1) for name in ("pad", "cls", "sep", "mask")}
        if missing := [name for name, id in named.items() if id < 0]:
            raise UserError(
                f"the data set's tokenizer has no {' and no '.join(missing)} token; prepare it with one that has"
            )
        tokenizer.check_roles()
        specials = frozenset(tokenizer.all_special_ids)
        vocabulary = cls(size=tokenizer.vocab_size, special_ids=specials, tokenizer_sha256=tokenizer.sha256, **named)
        if len(vocabulary.ordinary_ids) < 2:
            raise UserError(
                "the data set's vocabulary has fewer than two ordinary tokens; train a tokenizer on more text"
            )
        return vocabulary

    @cached_property
    def is_ordinary(self) -> NDArray[np.bool_]:
        """[size] True if an id may be selected for prediction or drawn as a replacement."""
        table = np.ones(self.size, dtype=np.bool_)
        table[[*self.special_ids, self.pad, self.cls, self.sep, self.mask]] = False
        return table

    @cached_property
    def ordinary_ids(self) -> NDArray[np.int64]:
        """The ordinary ids in increasing order."""
        return np.flatnonzero(self.is_ordinary)

    @cached_property
    def rank(self) -> NDArray[np.int64]:
        """[size] the index of each ordinary id in `ordinary_ids`."""
        return np.cumsum(self.is_ordinary) - 1


@dataclass(frozen=True)
class Rows:
    """Whole rows of R x S slots, before masking.

    tokens [R, S] int64: ids, specials and padding included.
    row_ids [R, 3] int64: (source and epoch, window, row), the identity of a row in the stream; it keys all draws.
    flags [R, S] uint8: bits of TokenFlag, if the objective needs them.
    """

    tokens: NDArray[np.int64]
    row_ids: NDArray[np.int64]
    flags: NDArray[np.uint8]

    def __getitem__(self, rows: NDArray[np.int64]) -> "Rows":
        """The rows with these numbers, in this order."""
        return Rows(self.tokens[rows], self.row_ids[rows], self.flags[rows])

    @property
    def word_starts(self) -> NDArray[np.bool_]:
        """[R, S] tokens that begin a word."""
        return (self.flags & np.uint8(TokenFlag.WORD_START)) != 0

    @property
    def targets(self) -> NDArray[np.bool_]:
        """[R, S] tokens that cloze repair predicts."""
        return (self.flags & np.uint8(TokenFlag.TARGET)) != 0


class RowGroup(NamedTuple):
    """Consecutive rows of a micro-batch that share an objective.

    objective: its number in Config.objective_kinds. view: what these rows see. rows: how many.
    places: K of all its rows.
    """

    objective: int
    view: View
    rows: int
    places: int


@dataclass(frozen=True)
class Masked:
    """A stream of N = R * S slots with room for K = R * slots predictions.

    tokens [N] int64: the model's input.
    positions [K] int64: the slots of the stream whose states predict: `slots` places per row, row after row, in
        increasing order within a row. Unused places come last and hold their row's first slot.
    labels [K] int64: the ids to predict; IGNORED in unused places.
    weights [K] float32: how much each prediction counts, 0 in unused places; None if all count the same.
    order [R]: for a mixture, the row of the input that each row was; None if they are unchanged.
    groups: the rows of each objective of a mixture, in order.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]
    weights: NDArray[np.float32] | None = None
    order: NDArray[np.int64] | None = None
    groups: tuple[RowGroup, ...] = ()


def compact(predicted: NDArray[np.bool_], slots: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Compact predicted tokens into arrays of constant shape, in increasing order.

    Args:
        predicted: [R, S] at most `slots` per row.
        slots: K, places per row.

    Returns:
        positions [R, K] int64: slots in the stream; unused places hold the row's first slot.
        used [R, K] bool: whether a place is used; in each row the used places come first.
    """
    n_rows, seq_len = predicted.shape
    used = np.arange(slots) < np.count_nonzero(predicted, axis=1)[:, None]
    positions = np.repeat(np.arange(n_rows) * seq_len, slots).reshape(n_rows, slots)
    positions[used] = np.flatnonzero(predicted)
    return positions, used


def labelled(
    seen: NDArray[np.int64], original: NDArray[np.int64], predicted: NDArray[np.bool_], slots: int, lag: int = 0
) -> Masked:
    """Rows that the model sees as `seen` [R, S]; states `lag` slots before the `predicted` tokens predict them."""
    positions, used = compact(predicted, slots)
    labels = np.where(used, original.reshape(-1)[positions], IGNORED)
    return Masked(seen.reshape(-1), (positions - lag * used).reshape(-1), labels.reshape(-1))
