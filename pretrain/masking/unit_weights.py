"""Weights of the units of a row: which ones masking selects more often than others."""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from data_prep.format import WeightList
from pretrain.config import MaskingConfig
from pretrain.masking.rows import Rows, Vocabulary

cached_weights = functools.cache(WeightList.read)
"""Read a list once per process, so that it cannot change during a run."""


@dataclass(frozen=True)
class UnitWeights:
    """Weighted selection.

    of_ids [size] float64: weight of each id. unmarked: factor on the weight of tokens that the data do not mark.
    """

    of_ids: NDArray[np.float64]
    unmarked: float

    @classmethod
    def of(cls, masking: MaskingConfig, vocabulary: Vocabulary) -> "UnitWeights | None":
        """The weights by `masking.selection`; None if all units have the same chance.

        Raises:
            UserError: if the list is missing or was made with another tokenizer. DamagedData: if it is damaged.
        """
        path, unmarked = masking.selection.weights, masking.selection.unmarked
        if path is None and unmarked == 1:
            return None
        of_ids = np.ones(vocabulary.size)
        if path:
            listed = cached_weights(path)
            if listed.tokenizer_sha256 != vocabulary.tokenizer_sha256 or len(listed.weights) != vocabulary.size:
                raise UserError(
                    f"{path} was made with another tokenizer than the data set; make a list from the data set with "
                    "`maskwright prep weights`, and set masking.selection.weights to it"
                )
            of_ids[:] = listed.weights
        return cls(of_ids * vocabulary.is_ordinary, unmarked)

    def of_rows(self, rows: Rows) -> NDArray[np.float64]:
        """The weight of each token [R, S]."""
        weights = self.of_ids[rows.tokens]
        return weights if self.unmarked == 1 else np.where(rows.targets, weights, weights * self.unmarked)
