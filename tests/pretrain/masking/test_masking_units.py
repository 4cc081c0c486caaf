"""Masks of single rows: those of the rule by hand, within the bounds, at the rate of the step."""

import hashlib
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.masking import Masked, MaskedTokens, Rows, largest_mask_rate, mask_rate
from pretrain.masking.selection import count, of_columns
from pretrain.philox import philox
from tests.support.configs import least_config
from tests.support.drawn_rows import STRATEGIES, VOCABULARY, drawn, selected, some, units_of, words
from tests.support.masks import token_masking
from tests.support.masks_by_hand import by_hand

RATES = [0.01, 0.15, 0.3, 0.5, 0.9, 0.999]


def masking(strategy: str, rate: float = 0.15, **options) -> MaskedTokens:
    return token_masking(VOCABULARY, rate, **STRATEGIES[strategy], **options)


def same(one: Masked, other: Masked) -> bool:
    return all(np.array_equal(getattr(one, n), getattr(other, n)) for n in ("tokens", "positions", "labels"))


@st.composite
def pictures(draw, seq_len: int) -> str:
    """A row: [CLS], words of 1 to 12 tokens, documents that end, specials in the midst of words, and padding."""
    length = st.one_of(st.just(1), st.integers(1, 8), st.integers(9, 40))
    special = st.sampled_from(["", "", "", "", "][", "?", "!", "#", "*", "?a", "[!]aa", "]."])
    row = "["
    while len(row) < seq_len and draw(st.integers(0, 40)):
        row += words(draw(length)) + draw(special)
    row = row[: seq_len - 1] + "]"
    return row + "." * (seq_len - len(row))


@st.composite
def batches(draw, max_rows: int = 4) -> Rows:
    seq_len = draw(st.integers(3, 80))
    rows = [drawn(draw(pictures(seq_len))) for _ in range(draw(st.integers(1, max_rows)))]
    tokens, flags = (np.concatenate([getattr(row, n) for row in rows]) for n in ("tokens", "flags"))
    places = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, 2**32, (len(rows), 3))
    return Rows(tokens, places, flags)


@pytest.mark.parametrize("per", ["unit", "token"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=25, deadline=None)
@given(rows=batches(), rate=st.sampled_from(RATES), seed=st.integers(0, 2**64 - 1))
def test_masks_are_those_of_the_rule_by_hand(strategy, per, rows, rate, seed):
    mask = masking(strategy, rate, mask=0.5, random=0.3, per=per, seed=seed)
    assert same(mask(rows, rate), by_hand(mask, rows, rate))


@settings(max_examples=60, deadline=None)
@given(rows=batches(), rate=st.sampled_from(RATES), seed=st.integers(0, 2**64 - 1), data=st.data())
def test_selection_is_whole_units_about_k_tokens_and_has_room(rows, rate, seed, data):
    strategy = data.draw(st.sampled_from(list(STRATEGIES)))
    mask = masking(strategy, rate, seed=seed)
    n_rows, seq_len = rows.tokens.shape
    hit = selected(mask(rows, rate), n_rows)
    for unit in units_of(mask, rows):
        assert len(set(hit.reshape(-1)[unit].tolist())) == 1, "a unit is selected in part"
        assert unit[-1] - unit[0] == len(unit) - 1, "a unit has a hole"
        assert unit[0] // seq_len == unit[-1] // seq_len, "a unit crosses rows"
        assert len(unit) <= max(strategy.longest for strategy in mask.strategies)
    ordinary = VOCABULARY.is_ordinary[rows.tokens]
    k = count(rate, ordinary.sum(axis=1))
    longest = [
        max((len(unit) for unit in units_of(mask, some(rows, slice(r, r + 1)))), default=1) for r in range(n_rows)
    ]
    assert (np.abs(hit.sum(axis=1) - k) <= np.array(longest) - 1).all()
    assert hit.sum(axis=1).max() <= mask.slots(seq_len) <= seq_len
    assert not (hit & ~ordinary).any()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_higher_rate_keeps_the_masks_of_a_lower_one(strategy):
    mask = masking(strategy, 0.9)
    rows = drawn(f"[{words(8, 1, 2, 1, 1, 5, 1)}][{words(1, 1, 1, 10, 2, 1)}]", 200)
    hits = [selected(mask(rows, rate), 200) for rate in (0.05, 0.15, 0.3, 0.5, 0.9)]
    for low, high in pairwise(hits):
        assert not (low & ~high).any()
        assert low.sum() < high.sum()


def test_masks_neither_use_nor_touch_global_random_numbers():
    rows = drawn(f"[{words(8, 1, 2, 1, 1, 5, 1)}]", 20)
    found = []
    for seed in (1, 2):
        np.random.seed(seed)
        before = np.random.get_state()[1].tolist()
        found.append(masking("mix")(rows, 0.15))
        assert np.random.get_state()[1].tolist() == before
    assert same(*found)


@given(st.floats(1e-6, 1 - 1e-6), st.integers(0, 2**20))
def test_k_is_rounded_exactly(rate, ordinary):
    """Halves up, of a rate that is a whole number of 2**-32: no floating point, which devices round differently."""
    exact = Fraction(round(rate * 2**32), 2**32) * ordinary + Fraction(1, 2)
    assert int(count(rate, ordinary)) == exact.numerator // exact.denominator
    assert abs(int(count(rate, ordinary)) - rate * ordinary) <= 0.5 + ordinary / 2**32


def test_slots_have_room_for_the_largest_rate_and_the_longest_unit():
    assert masking("token").slots(128) == 19
    assert masking("whole_word").slots(128) == 19 + 7
    assert masking("span").slots(128) == 19 + 16
    assert masking("mix").slots(128) == 19 + 16
    assert masking("span", 0.999).slots(128) == masking("span").slots(8) + 120 == 126, "no more than a row has"


def test_columns_are_the_numbers_of_their_counters():
    places = np.array([[1 << 16 | 3, 7, 11], [0, 2**32 - 1, 5]])
    found = of_columns((12, 34), places, 21)
    assert found.shape == (2, 21)
    for row, column in np.ndindex(2, 21):
        epoch, window, number = places[row].tolist()
        words_of = [int(word[0]) for word in philox((12, 34), [column // 8], number, window, epoch)]
        assert found[row, column] == words_of[column % 8 // 2] >> 16 * (column % 2) & 0xFFFF


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [("linear", [0.3, 0.2625, 0.225, 0.1875, 0.15]), ("cosine", [0.3, 0.278033, 0.225, 0.171967, 0.15])],
)
def test_mask_rates(schedule, wanted):
    rate = {"schedule": schedule, "start": 0.3, "end": 0.15}
    changing, constant = (least_config(train={"steps": 5}, masking={"rate": value}) for value in (rate, 0.2))
    assert [mask_rate(changing, step) for step in range(5)] == pytest.approx(wanted, abs=1e-6)
    assert mask_rate(changing, 9) == pytest.approx(0.15)
    assert mask_rate(changing, 0, 1) == 0.3
    assert largest_mask_rate(changing.masking) == 0.3
    assert {mask_rate(constant, step) for step in range(5)} == {0.2} == {largest_mask_rate(constant.masking)}


GOLDEN = {
    "token": "6ed4666f1fac27c4",
    "whole_word": "e807d2dd4a11c648",
    "span": "e8a43a4e713e8e29",
    "mix": "7eb3e5310db23991",
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_masks_are_those_of_this_plan_version(strategy):
    """With others, runs would not resume as they began: then raise PLAN_VERSION (pretrain/data/stream.py)."""
    rows = drawn(f"[{words(8, 1, 2, 1, 12, 5, 1)}]?[{words(3, 1, 4, 1, 5, 9, 2, 6, 5)}]..", 2000)
    ids = 5 + np.arange(rows.tokens.size).reshape(rows.tokens.shape) % 25  # which no library can change
    rows.tokens[:] = np.where(VOCABULARY.is_ordinary[rows.tokens], ids, rows.tokens)
    digest = hashlib.sha256()
    for rate in (0.15, 0.5):
        found = masking(strategy, rate, seed=11)(rows, rate)
        for name in ("tokens", "positions", "labels"):
            digest.update(getattr(found, name).astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == GOLDEN[strategy]
