"""Masked language modelling objective: select tokens of a row, replace them, and label them.

With a lag of one, the state of the slot before a masked token predicts it (masked next-token prediction). Causal
language modelling predicts from there too, so both can share one head (BehnamGhader et al., "LLM2Vec", 2024;
Charpentier and Samuel, "GPT or BERT: why not both?", 2024).

A mask is a pure function of (seed, source and epoch, window, row, slot, rate) and the settings.
"""

import numpy as np
from numpy.typing import NDArray

from pretrain.config import MaskingConfig
from pretrain.masking.mask_rate import largest_mask_rate
from pretrain.masking.rows import IGNORED, Masked, Rows, TokenFlag, Vocabulary, compact
from pretrain.masking.selection import (
    count,
    fixed,
    of_columns,
    of_rows,
    scaled_draws,
    select_tokens,
    select_units,
    select_weighted,
    wide,
)
from pretrain.masking.unit_weights import UnitWeights
from pretrain.masking.units import RowText, SpanUnits, Strategy, TokenUnits, WholeWords, cut
from pretrain.philox import derive_key


def replace(
    original: NDArray[np.int64],
    used: NDArray[np.bool_],
    lag: NDArray[np.int64] | None,
    vocabulary: Vocabulary,
    masking: MaskingConfig,
    draws: NDArray[np.uint16],
) -> NDArray[np.int64]:
    """The replacements of predicted tokens: [R, K]. A random id is never a special token or the original one.

    Args:
        original, used: [R, K] the predicted tokens of each row in order, and whether a place holds one.
        lag: [R, K] distance from a prediction back to the first one of its unit; None if each draws alone.
        draws: [R, 3 * K] 16-bit numbers: the replacement kind of each prediction, then two halves of its random id.
    """
    n_places = original.shape[1]
    kind = draws[:, :n_places]
    if lag is not None:
        kind = np.take_along_axis(kind, np.arange(n_places) - lag, axis=1)
    shares = masking.replacement
    to_mask, to_random = round(shares.mask * 2**16), round((shares.mask + shares.random) * 2**16)
    seen = np.where(kind < to_mask, vocabulary.mask, original)
    row, number = np.nonzero((kind >= to_mask) & (kind < to_random) & used)
    pick = wide(draws[row[:, None], n_places + 2 * number[:, None] + np.arange(2)])[:, 0]
    other = scaled_draws(pick, len(vocabulary.ordinary_ids) - 1)
    other += other >= vocabulary.rank[original[row, number]]  # skip the original
    seen[row, number] = vocabulary.ordinary_ids[other]
    return seen


class MaskedTokens:
    """The MLM objective.

    Args:
        masking: the settings; the largest rate sizes the arrays. With a mix, every row draws one of its strategies.
        vocabulary: the tokenizer's ids.
        seed: keys every draw.
        purpose: draws of two purposes ("train", "valid") are independent.
        lag: slots from the state that predicts to the token that it predicts.

    Raises UserError if a list of weights is missing, damaged, or made with another tokenizer.
    """

    def __init__(self, masking: MaskingConfig, vocabulary: Vocabulary, seed: int, purpose: str, lag: int = 0):
        self.lag = lag
        self.vocabulary, self.masking, self._rate = vocabulary, masking, largest_mask_rate(masking)
        self.strategies = [_strategy(masking, name) for name in masking.weights]
        shares = np.cumsum([*masking.weights.values()])
        self.bounds = np.array([fixed(share) for share in shares[:-1] / shares[-1]], dtype=np.int64)
        self.choice_key = derive_key(seed, f"{purpose}-mask-strategy")
        self.unit_keys = [derive_key(seed, f"{purpose}-mask-units {n}") for n in range(len(self.strategies))]
        self.key = derive_key(seed, f"{purpose}-masks")
        self.weights = UnitWeights.of(masking, vocabulary)
        self.weight_key = derive_key(seed, f"{purpose}-mask-weights")

    @property
    def by_token(self) -> bool:
        """Whether all units are single tokens."""
        return all(isinstance(strategy, TokenUnits) for strategy in self.strategies)

    @property
    def flags(self) -> int:
        marks = TokenFlag.TARGET if self.weights and self.weights.unmarked != 1 else 0
        return marks if self.by_token else TokenFlag.WORD_START | marks

    def slots(self, seq_len: int) -> int:
        """Places for the selection of a full row with one [CLS] and one [SEP], plus room for a longer last unit."""
        longest = max(strategy.longest for strategy in self.strategies)
        return min(int(count(self._rate, seq_len - 2)) + longest - 1, seq_len - 2)

    def __call__(self, rows: Rows, rate: float) -> Masked:
        tokens = rows.tokens
        ordinary = self.vocabulary.is_ordinary[tokens]
        counts = count(rate, np.count_nonzero(ordinary, axis=1))
        begins = self.unit_begins(rows, ordinary)
        seq_len, slots = tokens.shape[1], self.slots(tokens.shape[1])
        # One call makes all draws of a row: one per slot, three per prediction, and two for the row.
        draws = of_columns(self.key, rows.row_ids, seq_len + 3 * slots + 2)
        order, replacement_draws, row_draws = draws[:, :seq_len], draws[:, seq_len:-2], wide(draws[:, -2:])[:, 0]
        if self.weights:
            numbers = wide(of_columns(self.weight_key, rows.row_ids, 2 * seq_len))
            selected = select_weighted(ordinary, begins, self.weights.of_rows(rows), counts, numbers, row_draws)
        elif self.by_token:
            selected = select_tokens(ordinary, counts, order)
        else:
            selected = select_units(ordinary, begins, counts, order, row_draws)
        positions, used = compact(selected, slots)
        original = tokens.reshape(-1)[positions]
        alone = self.by_token or self.masking.replacement.per == "token"
        lag = None if alone else _lag(begins, positions)
        replaced = replace(original, used, lag, self.vocabulary, self.masking, replacement_draws)
        seen = tokens.reshape(-1).copy()
        seen[positions[used]] = replaced[used]
        # A row begins with [CLS] or padding, so the slot before an ordinary token is in the same document.
        predicting = positions - self.lag * used
        return Masked(seen, predicting.reshape(-1), np.where(used, original, IGNORED).reshape(-1))

    def unit_begins(self, rows: Rows, ordinary: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[R, S] where units begin, by a strategy drawn for each row."""
        if self.by_token:
            return ordinary
        text = RowText(rows, ordinary)
        if len(self.strategies) == 1:
            return cut(self.strategies[0], text, self.unit_keys[0])
        begins = np.empty_like(text.ordinary)
        chosen = np.searchsorted(self.bounds, of_rows(self.choice_key, text.rows.row_ids), side="right")
        for number, (strategy, key) in enumerate(zip(self.strategies, self.unit_keys, strict=True)):
            of_strategy = np.flatnonzero(chosen == number)
            begins[of_strategy] = cut(strategy, text[of_strategy], key)
        return begins


def _strategy(masking: MaskingConfig, name: str) -> Strategy:
    """Create a strategy with its settings."""
    if name == "whole_word":
        return WholeWords()
    if name == "span":
        return SpanUnits(masking.span.p, masking.span.max_words)
    return TokenUnits()


def _lag(begins: NDArray[np.bool_], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Distance [R, K] from each prediction back to the first one of its unit.

    Units, which begin at [R, S], are selected as a whole, so the first token of one is among the predictions.
    """
    number = np.arange(positions.shape[1])
    return number - np.maximum.accumulate(np.where(begins.reshape(-1)[positions], number, 0), axis=1)
