"""Units of single rows: selected as a whole, within the bounds, by the rule."""

import hashlib
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.masking import IGNORED, Masked, MaskedTokens, Rows, TokenFlag
from pretrain.masking.selection import count, of_columns
from pretrain.masking.units import NGrams, SpanUnits
from pretrain.philox import philox
from tests.support.drawn_rows import STRATEGIES, VOCABULARY, drawn, selected, some, units_of, words
from tests.support.masks import token_masking
from tests.support.masks_by_hand import by_hand

RATES = [0.01, 0.15, 0.3, 0.5, 0.9, 0.999]


def masking(strategy: str, rate: float = 0.15, **options) -> MaskedTokens:
    return token_masking(VOCABULARY, rate, strategies=STRATEGIES[strategy], **options)


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


@pytest.mark.parametrize("per", ["unit", "word", "token"])
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
        assert len(unit) <= max(strategy.longest for strategy, _ in STRATEGIES[strategy])
    ordinary = VOCABULARY.is_ordinary[rows.tokens]
    k = count(rate, ordinary.sum(axis=1))
    longest = [
        max((len(unit) for unit in units_of(mask, some(rows, slice(r, r + 1)))), default=1) for r in range(n_rows)
    ]
    assert (np.abs(hit.sum(axis=1) - k) <= np.array(longest) - 1).all()
    assert hit.sum(axis=1).max() <= mask.slots(seq_len) <= seq_len
    assert not (hit & ~ordinary).any()


@settings(max_examples=60, deadline=None)
@given(rows=batches(), rate=st.sampled_from(RATES), seed=st.integers(0, 2**64 - 1), data=st.data())
def test_predictions_are_the_originals_each_once_and_nothing_else_changes(rows, rate, seed, data):
    """No label is [MASK] or another special token, no place counts twice, padding and specials stay unchanged."""
    mask = masking(data.draw(st.sampled_from(list(STRATEGIES))), rate, seed=seed)
    before = rows.tokens.copy()
    found = mask(rows, rate)
    assert (rows.tokens == before).all(), "the rows themselves are left alone"
    n_rows, seq_len = before.shape
    used = found.labels != IGNORED
    positions = found.positions.reshape(n_rows, -1)
    assert len(set(found.positions[used].tolist())) == used.sum()
    assert (found.labels[used] == before.reshape(-1)[found.positions[used]]).all()
    assert VOCABULARY.is_ordinary[found.labels[used]].all()
    assert (positions // seq_len == np.arange(n_rows)[:, None]).all()
    for row, in_use in zip(positions, used.reshape(n_rows, -1), strict=True):
        assert (np.diff(row[in_use]) > 0).all(), "in increasing order"
        assert (row[~in_use] % seq_len == 0).all()
        assert (np.diff(in_use.astype(int)) <= 0).all(), "unused places come last"
    changed = np.flatnonzero(found.tokens != before.reshape(-1))
    assert set(changed.tolist()) <= set(found.positions[used].tolist())
    assert (VOCABULARY.is_ordinary | (np.arange(VOCABULARY.size) == VOCABULARY.mask))[found.tokens[changed]].all()


@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=1, max_size=4),
    st.sampled_from([0.15, 0.5]),
)
def test_words_are_selected_whole_and_long_ones_cut(documents, rate):
    """By the flags of the row, not by spelling."""
    picture = "".join(f"[{words(*document)}]" for document in documents)
    rows = drawn(picture, 8)
    wanted, slot = [], 0
    for document in documents:
        slot += 1
        for length in document:
            wanted += [list(range(at, min(at + 8, slot + length))) for at in range(slot, slot + length, 8)]
            slot += length
        slot += 1
    mask = masking("whole_word", rate)
    assert units_of(mask, some(rows, slice(0, 1))) == wanted
    for row in selected(mask(rows, rate), 8):
        assert all(row[unit].all() or not row[unit].any() for unit in wanted)


def test_special_tokens_end_units_even_within_a_word():
    rows = drawn("[Aaa?aa!aBbb][Bb#bbCc*][A]..")
    ends = [[1, 2, 3], [5, 6], [8], [9, 10, 11], [14, 15], [17, 18], [19, 20], [24]]
    assert units_of(masking("whole_word"), rows) == ends
    for strategy in ("span", "ngram"):
        runs = [[1, 2, 3], [5, 6], [8, 9, 10, 11], [14, 15], [17, 18, 19, 20], [24]]
        for unit in units_of(masking(strategy), rows):
            assert any(set(unit) <= set(run) for run in runs), "a unit crosses a special token"


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_ngrams_have_n_words_but_at_the_ends_of_documents(n):
    document = [3, 1, 1, 2, 1, 1, 1, 2, 1, 3, 1, 1, 1, 2, 1, 1, 3]  # no n-gram is cut
    mask = token_masking(VOCABULARY, strategies=[(NGrams(n), 1)])
    starts = (1 + np.cumsum([0, *document])[:-1]).tolist()
    firsts = set()
    for number in range(40):
        rows = drawn(f"[{words(*document)}]")
        rows.row_ids[:] = 0, 0, number
        units = units_of(mask, rows)
        lengths = [sum(slot in starts for slot in unit) for unit in units]
        assert all(unit[0] in starts for unit in units)
        assert all(length == n for length in lengths[1:-1])
        assert lengths[-1] <= n
        firsts.add(lengths[0])
    assert firsts == set(range(1, n + 1)), "counted from a random word on"


def test_spans_begin_at_words_and_differ_between_rows():
    document = [1, 3, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    rows, starts = drawn(f"[{words(*document)}]", 200), set((1 + np.cumsum([0, *document])[:-1]).tolist())
    mask, found = masking("span"), set()
    for row in range(200):
        units = units_of(mask, some(rows, slice(row, row + 1)))
        assert {unit[0] for unit in units} <= starts
        assert max(sum(slot in starts for slot in unit) for unit in units) <= 10
        found.add(tuple(len(unit) for unit in units))
    assert len(found) > 150


def test_a_span_of_one_word_is_a_word_and_an_ngram_of_one_too():
    rows = drawn(f"[{words(3, 1, 4, 1, 5)}][{words(9, 2, 6)}]", 4)
    wanted = units_of(masking("whole_word"), rows)
    for strategy in (NGrams(1), SpanUnits(0.5, 1)):
        assert units_of(token_masking(VOCABULARY, strategies=[(strategy, 1)]), rows) == wanted


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("per", ["unit", "word", "token"])
def test_rows_without_ordinary_tokens_cost_nothing(strategy, per):
    """Also between rows that have some, and rows too short for a prediction."""
    empty = ["." * 12, "[]" + "." * 10, "[?!#]" + "." * 7, "[" + "?" * 10 + "]", "[A]" + "." * 9, "[Aa]B[]....."]
    rows = [drawn(picture) for picture in [*empty, "[AaaBcccDdd]", *empty, "[AaaBcccDdd]", *empty]]
    tokens, flags = (np.concatenate([getattr(row, n) for row in rows]) for n in ("tokens", "flags"))
    rows = Rows(tokens, np.stack([np.zeros(20, int), np.zeros(20, int), np.arange(20)], axis=1), flags)
    mask = masking(strategy, 0.15, per=per)
    found = mask(rows, 0.15)
    hit = selected(found, 20)
    full = np.isin(np.arange(20), (6, 13))
    assert (hit.sum(axis=1)[~full] == 0).all(), "three tokens at most: k is 0"
    assert (found.tokens.reshape(20, 12)[~full] == tokens[~full]).all()
    assert (found.labels.reshape(20, -1)[~full] == IGNORED).all()
    for row in np.flatnonzero(full):
        alone = mask(some(rows, slice(row, row + 1)), 0.15)
        assert (found.tokens.reshape(20, 12)[row] == alone.tokens).all()
        assert (found.labels.reshape(20, -1)[row] == alone.labels).all()
    nothing = mask(some(rows, slice(0, 4)), 0.15)
    assert (nothing.labels == IGNORED).all()
    assert (nothing.tokens == tokens[:4].reshape(-1)).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_only_token_of_a_row_is_predicted_where_k_is_one(strategy):
    found = masking(strategy, 0.5)(drawn("[?A]....", 16), 0.5)
    assert selected(found, 16).sum() == 16
    assert (found.positions[found.labels != IGNORED] % 8 == 2).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_higher_rate_keeps_the_masks_of_a_lower_one(strategy):
    mask = masking(strategy, 0.9)
    rows = drawn(f"[{words(8, 1, 2, 1, 1, 5, 1)}][{words(1, 1, 1, 10, 2, 1)}]", 200)
    hits = [selected(mask(rows, rate), 200) for rate in (0.05, 0.15, 0.3, 0.5, 0.9)]
    for low, high in pairwise(hits):
        assert not (low & ~high).any()
        assert low.sum() < high.sum()


def test_other_marks_than_word_starts_change_nothing():
    rows = drawn(f"[{words(8, 1, 2, 1, 1, 5, 1)}]", 20)
    others = np.random.default_rng(0).choice(np.array([0, TokenFlag.TARGET], np.uint8), rows.flags.shape)
    for strategy in STRATEGIES:
        mask = masking(strategy)
        assert same(mask(rows, 0.15), mask(Rows(rows.tokens, rows.row_ids, rows.flags | others), 0.15))


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
    assert masking("ngram").slots(128) == 19 + 9
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


GOLDEN = {
    "token": "6ed4666f1fac27c4",
    "whole_word": "e807d2dd4a11c648",
    "span": "e8a43a4e713e8e29",
    "ngram": "da8f12a99d9befc8",
    "mix": "2d322cbf0fc2249c",
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
