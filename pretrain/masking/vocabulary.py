"""What masking must know of a vocabulary: its special ids, and the ordinary ids a replacement is drawn from."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Vocabulary:
    """size counts every id, added tokens included; special_ids are never selected and never drawn."""

    size: int
    pad: int
    cls: int
    sep: int
    mask: int
    special_ids: frozenset[int]

    @cached_property
    def is_ordinary(self) -> NDArray[np.bool_]:
        """[size] True where an id may be selected for prediction, or drawn as a replacement."""
        table = np.ones(self.size, dtype=np.bool_)
        table[[*self.special_ids, self.pad, self.cls, self.sep, self.mask]] = False
        return table

    @cached_property
    def ordinary_ids(self) -> NDArray[np.int64]:
        """The ordinary ids in increasing order."""
        return np.flatnonzero(self.is_ordinary)

    @cached_property
    def rank(self) -> NDArray[np.int64]:
        """[size] the place of each ordinary id among `ordinary_ids`."""
        return np.cumsum(self.is_ordinary) - 1
