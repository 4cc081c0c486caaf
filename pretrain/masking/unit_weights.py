"""Weights of the units of a row: which ones masking selects more often than others."""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from data_prep.format import WeightList
from pretrain.config import SelectionConfig
from pretrain.masking.rows import Rows, Vocabulary
from pretrain.masking.selection import select_tokens, select_units, select_weighted

cached_weights = functools.lru_cache(4)(WeightList.read)
"""Read a list once per process, so that it cannot change during a run."""


@dataclass(frozen=True)
class UnitWeights:
    """Weighted selection.

    of_ids [size] float64: weight of each id. ends_sentence [size] bool. begins_text: the id that begins a document.
    unmarked: factor on the weight of tokens that the data do not mark. per: see SelectionConfig.
    """

    of_ids: NDArray[np.float64]
    ends_sentence: NDArray[np.bool_]
    begins_text: int
    unmarked: float
    per: str

    @classmethod
    def of(cls, selection: SelectionConfig, vocabulary: Vocabulary) -> "UnitWeights | None":
        """The weights with these settings; None if all units have the same chance.

        Raises:
            UserError: if the list is missing or was made with another tokenizer. DamagedData: if it is damaged.
        """
        if selection == SelectionConfig():
            return None
        of_ids, ends = np.ones(vocabulary.size), np.zeros(vocabulary.size, np.bool_)
        if path := selection.weights:
            listed = cached_weights(path)
            if listed.tokenizer_sha256 != vocabulary.tokenizer_sha256 or len(listed.weights) != vocabulary.size:
                raise UserError(
                    f"{path} was made with another tokenizer than the data set; make a list from the data set with "
                    "`maskwright prep weights`, and set masking.selection.weights to it"
                )
            of_ids[:], ends[listed.sentence_ends] = listed.weights, True
        return cls(of_ids * vocabulary.is_ordinary, ends, vocabulary.cls, selection.unmarked, selection.per)

    def select(
        self,
        rows: Rows,
        ordinary: NDArray[np.bool_],
        begins: NDArray[np.bool_] | None,
        counts: NDArray[np.int64],
        numbers: NDArray[np.int64],
        draws: NDArray[np.uint16],
        row_draws: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Selected tokens [R, S]: counts [R] on average by weight, or one unit of each sentence.

        If the units of a row's sentences have more tokens than the count, each has the same chance to be selected.

        Args:
            begins: [R, S] where units begin; None if each token is one.
            numbers: [R, S] 32-bit numbers. draws, row_draws: see `select_units`.
        """
        weights, units = self.of_ids[rows.tokens], ordinary if begins is None else begins
        if self.unmarked != 1:
            weights = np.where(rows.targets, weights, weights * self.unmarked)
        if self.per == "row":
            return select_weighted(ordinary, units, weights, np.indices(weights.shape)[0], counts, numbers, row_draws)
        sentences, one_unit = self._sentences(rows.tokens), np.ones_like(counts)
        chosen = select_weighted(ordinary, units, weights, sentences, one_unit, numbers, 0 * one_unit)
        counts = np.minimum(counts, np.count_nonzero(chosen, axis=1))
        if begins is None:
            return select_tokens(chosen, counts, draws)
        return select_units(chosen, begins & chosen, counts, draws, row_draws)

    def _sentences(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of each slot's sentence in the stream, [R, S]. A document, so a row too, begins a new one."""
        begins = tokens == self.begins_text
        begins[:, 1:] |= self.ends_sentence[tokens[:, :-1]]
        return np.cumsum(begins).reshape(tokens.shape)
