"""Weighted selection: exact counts, chances by their definition, one unit a sentence, and lists of weights."""

from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.format import WeightList
from pretrain.config import SelectionConfig
from pretrain.masking import MaskedTokens, Rows, TokenFlag
from pretrain.masking.unit_weights import UnitWeights
from tests.pretrain.masking.test_masking_units import RATES, batches, same
from tests.support.chance import check_means, check_shares
from tests.support.drawn_rows import STRATEGIES, VOCABULARY, drawn, selected, words
from tests.support.masks import token_masking
from tests.support.masks_by_hand import by_hand

END, STOP = 11, 12  # a full stop, and a word without a weight


def weighted(
    weights: dict[int, float],
    strategy: str = "token",
    rate: float = 0.15,
    per="row",
    unmarked=1.0,
    other=1.0,
    **options,
) -> MaskedTokens:
    """Masking by the weights of some ids, `other` for the rest. END ends a sentence."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "list"
        WeightList("", [END], [weights.get(id, other) for id in range(VOCABULARY.size)]).write(path)
        found = UnitWeights.of(SelectionConfig(weights=path, per=per, unmarked=unmarked), VOCABULARY)
    return token_masking(VOCABULARY, rate, strategies=STRATEGIES[strategy], weights=found, **options)


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


@pytest.mark.parametrize("per", ["row", "sentence"])
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
def test_masks_are_those_of_the_rule_by_hand(per, strategy, rows, weights, other, unmarked, rate, seed):
    rng = np.random.default_rng(seed)
    rows = Rows(
        rows.tokens, rows.row_ids, rows.flags | (rng.random(rows.flags.shape) < 0.3) * np.uint8(TokenFlag.TARGET)
    )
    rows.tokens[VOCABULARY.is_ordinary[rows.tokens] & (rng.random(rows.tokens.shape) < 0.2)] = END
    mask = weighted(weights, strategy, rate, per, unmarked, other, seed=seed)
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


def test_what_has_no_weight_is_never_predicted_and_a_row_may_have_fewer():
    rows = drawn(f"[{words(*[1] * 20)}]", 2000)
    mask = weighted({10: 1.0, 20: 1.0}, rate=0.3, other=0.0)
    hit = selected(mask(rows, 0.3), 2000)
    candidates = np.isin(rows.tokens, (10, 20))
    assert not (hit & ~candidates).any()
    assert (hit.sum(axis=1) == np.minimum(candidates.sum(axis=1), 6)).all()


def test_marked_tokens_are_preferred():
    rows = row_of([10] * 10, 30_000)
    rows.flags[:, 3] |= np.uint8(TokenFlag.TARGET)
    one = selected(weighted({}, rate=0.1, unmarked=0.25)(rows, 0.1), 30_000)
    check_shares(one[:, 3].sum(), 30_000, 1 / (1 + 9 * 0.25))
    only = selected(weighted({}, rate=0.5, unmarked=0.0)(rows, 0.5), 30_000)
    assert (only.sum(axis=1) == 1).all()
    assert only[:, 3].all()


@pytest.mark.parametrize("strategy", ["token", "whole_word"])
def test_one_unit_of_each_sentence_by_weight(strategy):
    """Two sentences in the first document; in the second one without a candidate and one without an end."""
    picture = f"[{words(1, 1, 1, 1, 1, 1, 1)}][{words(1, 1, 1, 1)}]"
    rows = drawn(picture, 20_000)
    rows.tokens[:, 1:8] = [10, 13, STOP, END, 14, STOP, END]
    rows.tokens[:, 10:14] = [STOP, END, 15, 16]
    mask = weighted({10: 3.0, END: 0.0, STOP: 0.0}, strategy, 0.5, "sentence")
    hit = selected(mask(rows, 0.5), 20_000)
    assert (hit.sum(axis=1) == 3).all()
    assert hit[:, 5].all()
    check_shares(hit[:, 1].sum(), 20_000, 3 / 4)
    assert (hit[:, 1] != hit[:, 2]).all()
    assert (hit[:, 12] != hit[:, 13]).all()
    check_shares(hit[:, 12].sum(), 20_000, 1 / 2)
    check_shares((hit[:, 1] & hit[:, 12]).sum(), 20_000, 3 / 8)


def test_with_more_sentences_than_places_each_has_the_same_chance():
    sentence = [10, 13, STOP, END]
    mask = weighted({END: 0.0, STOP: 0.0, 10: 50.0}, "token", 0.1, "sentence")
    hit = selected(mask(row_of(sentence * 5, 20_000), 0.1), 20_000)[:, 1:-1].reshape(20_000, 5, 4)
    assert (hit.sum(axis=(1, 2)) == 2).all()
    check_shares(hit.any(axis=2).sum(axis=0), 20_000, 2 / 5)
