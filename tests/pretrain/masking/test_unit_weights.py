"""Weighted selection: exact counts, chances by their definition, and marked tokens."""

from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.format import WeightList
from pretrain.masking import MaskedTokens, Rows, TokenFlag
from tests.pretrain.masking.test_masking_units import RATES, batches, same
from tests.support.chance import check_means, check_shares
from tests.support.drawn_rows import STRATEGIES, VOCABULARY, drawn, selected
from tests.support.masks import token_masking
from tests.support.masks_by_hand import by_hand


def weighted(
    weights: dict[int, float],
    strategy: str = "token",
    rate: float = 0.15,
    unmarked=1.0,
    other=1.0,
    **options,
) -> MaskedTokens:
    """Masking by the weights of some ids, `other` for the rest."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "list"
        WeightList("", [weights.get(id, other) for id in range(VOCABULARY.size)]).write(path)
        selection = {"weights": path, "unmarked": unmarked}
        return token_masking(VOCABULARY, rate, selection=selection, **STRATEGIES[strategy], **options)


def row_of(tokens: list[int], n_rows: int, starts: list[bool] | None = None) -> Rows:
    """The same row of one document again and again."""
    picture = "[" + "".join("A" if start else "a" for start in starts or [True] * len(tokens)) + "]"
    rows = drawn(picture, n_rows)
    rows.tokens[:, 1:-1] = tokens
    return rows


def successive(weights: list[float], k: int) -> np.ndarray:
    """The chance of each of some things to be among k that are drawn one after the other, by its weight in the rest."""
    chances = np.zeros(len(weights))
    for order in permutations(range(len(weights)), k):
        chance, left = 1.0, sum(weights)
        for one in order:
            chance, left = chance * weights[one] / left, left - weights[one]
        chances[list(order)] += chance
    return chances


WEIGHTS = st.sampled_from([0.0, 0.001, 0.5, 1.0, 3.0, 1000.0])


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=40, deadline=None)
@given(
    rows=batches(),
    weights=st.dictionaries(st.sampled_from(VOCABULARY.ordinary_ids.tolist()), WEIGHTS, max_size=30),
    other=WEIGHTS,
    unmarked=st.sampled_from([0.0, 0.5, 1.0, 4.0]),
    rate=st.sampled_from(RATES),
    seed=st.integers(0, 2**64 - 1),
)
def test_masks_are_those_of_the_rule_by_hand(strategy, rows, weights, other, unmarked, rate, seed):
    rng = np.random.default_rng(seed)
    rows = Rows(
        rows.tokens, rows.row_ids, rows.flags | (rng.random(rows.flags.shape) < 0.3) * np.uint8(TokenFlag.TARGET)
    )
    mask = weighted(weights, strategy, rate, unmarked, other, seed=seed)
    assert same(mask(rows, rate), by_hand(mask, rows, rate))


@pytest.mark.parametrize("k", [1, 2, 4])
def test_tokens_have_the_chances_of_successive_draws(k):
    """And their number is exactly k in every row."""
    tokens, weights = [10, 11, 12, 13, 14, 15], [1.0, 0.2, 5.0, 1.0, 0.0, 2.5]
    mask = weighted(dict(zip(tokens, weights, strict=True)), rate=k / 6)
    hit = selected(mask(row_of(tokens, 60_000), k / 6), 60_000)[:, 1:-1]
    assert (hit.sum(axis=1) == k).all()
    positive = [weight for weight in weights if weight]
    check_shares(hit.sum(axis=0)[np.array(weights) > 0], 60_000, successive(positive, k))
    assert not hit[:, 4].any()


def test_a_unit_has_the_mean_weight_of_its_tokens():
    """A word of three tokens with mean weight 2, and one of one token: the first of them is selected, if it fits k."""
    tokens, starts = [10, 11, 12, 13], [True, False, False, True]
    mask = weighted({10: 6.0, 13: 1.0}, "whole_word", 0.75, other=0.0)
    hit = selected(mask(row_of(tokens, 60_000, starts), 0.25), 60_000)[:, 1:-1]
    check_shares(hit[:, [0, 3]].sum(axis=0), 60_000, np.array([2 / 3 / 3, 1 / 3]))
    check_means(hit.sum(axis=1), 1)
    hit = selected(mask(row_of(tokens, 60_000, starts), 0.75), 60_000)[:, 1:-1]
    check_shares(hit[:, [0, 3]].sum(axis=0), 60_000, np.array([2 / 3 + 1 / 3 * 2 / 3, 1 / 3]))


def test_marked_tokens_are_preferred():
    rows = row_of([10] * 10, 30_000)
    rows.flags[:, 3] |= np.uint8(TokenFlag.TARGET)
    one = selected(weighted({}, rate=0.1, unmarked=0.25)(rows, 0.1), 30_000)
    check_shares(one[:, 3].sum(), 30_000, 1 / (1 + 9 * 0.25))
    only = selected(weighted({}, rate=0.5, unmarked=0.0)(rows, 0.5), 30_000)
    assert (only.sum(axis=1) == 1).all()
    assert only[:, 3].all()
