"""Masks of single rows: those of the rule by hand, at the rate of the step, by weights of tokens."""

import hashlib
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.format import WeightList
from pretrain.masking import Masked, Rows, TokenFlag, largest_mask_rate, mask_rate
from pretrain.masking.selection import count
from tests.support.configs import least_config
from tests.support.drawn_rows import STRATEGIES, VOCABULARY, drawn, masking, words
from tests.support.masks_by_hand import by_hand

RATES = [0.01, 0.15, 0.3, 0.5, 0.9, 0.999]


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


@pytest.mark.parametrize(
    ("strategy", "golden"),
    [
        ("token", "6ed4666f1fac27c4"),
        ("whole_word", "e807d2dd4a11c648"),
        ("span", "e8a43a4e713e8e29"),
        ("mix", "7eb3e5310db23991"),
    ],
)
def test_masks_are_those_of_this_plan_version(strategy, golden):
    """With others, runs would not resume as they began: then raise PLAN_VERSION (pretrain/data/stream.py)."""
    rows = drawn(f"[{words(8, 1, 2, 1, 12, 5, 1)}]?[{words(3, 1, 4, 1, 5, 9, 2, 6, 5)}]..", 2000)
    ids = 5 + np.arange(rows.tokens.size).reshape(rows.tokens.shape) % 25  # which no library can change
    rows.tokens[:] = np.where(VOCABULARY.is_ordinary[rows.tokens], ids, rows.tokens)
    digest = hashlib.sha256()
    for rate in (0.15, 0.5):
        found = masking(strategy, rate, seed=11)(rows, rate)
        for name in ("tokens", "positions", "labels"):
            digest.update(getattr(found, name).astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == golden


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
def test_weighted_masks_are_those_of_the_rule_by_hand(strategy, rows, weights, other, unmarked, rate, seed):
    marked = np.random.default_rng(seed).random(rows.flags.shape) < 0.3
    rows = Rows(rows.tokens, rows.row_ids, rows.flags | marked * np.uint8(TokenFlag.TARGET))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "list"
        WeightList("", [weights.get(id, other) for id in range(VOCABULARY.size)]).write(path)
        mask = masking(strategy, rate, selection={"weights": path, "unmarked": unmarked}, seed=seed)
    assert same(mask(rows, rate), by_hand(mask, rows, rate))
