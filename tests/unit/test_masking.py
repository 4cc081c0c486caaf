"""Masking: exact counts, unbiased choices, and none of the usual mistakes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.masking.rows import IGNORED, Masked, Rows
from pretrain.masking.vocabulary import Vocabulary
from tests.support.masks import rows_of, token_masking

VOCABULARY = Vocabulary(size=50, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset({0, 1, 2, 3, 4, 30}))
SPECIAL = np.array(sorted(VOCABULARY.special_ids))


def full(n_rows: int, seq_len: int, id: int = 10) -> np.ndarray:
    """Rows of one document that is one id, again and again."""
    tokens = np.full((n_rows, seq_len), id)
    tokens[:, 0], tokens[:, -1] = 2, 3
    return tokens


def masked(tokens: np.ndarray, rate: float = 0.15, epoch: int = 0, **settings) -> Masked:
    return token_masking(VOCABULARY, rate, **settings)(rows_of(tokens, epoch), rate)


def text(n_rows: int, seq_len: int, seed: int = 0) -> np.ndarray:
    """Rows of ordinary ids, with [CLS], [SEP], [UNK], padding and an added special token among them."""
    rng = np.random.default_rng(seed)
    tokens = rng.choice(VOCABULARY.ordinary_ids, size=(n_rows, seq_len))
    tokens[:, 0], tokens[:, -3], tokens[:, -2:] = 2, 3, 0
    tokens[:, 5], tokens[:, 7] = 30, 1
    return tokens


@given(
    n_rows=st.integers(1, 8),
    seq_len=st.integers(10, 70),
    rate=st.sampled_from([0.01, 0.15, 0.3, 0.5, 0.9]),
    seed=st.integers(0, 2**64 - 1),
)
def test_exact_counts_labels_and_specials(n_rows, seq_len, rate, seed):
    tokens = text(n_rows, seq_len, seed % 1000)
    mask = token_masking(VOCABULARY, rate, seed=seed)
    found = mask(rows_of(tokens), rate)
    labels = found.labels.reshape(n_rows, -1)
    assert labels.shape[1] == mask.slots(seq_len)
    used = labels != IGNORED
    maskable = VOCABULARY.is_ordinary[tokens].sum(axis=1)
    assert used.sum(axis=1).tolist() == [(round(rate * 2**32) * int(m) + 2**31) >> 32 for m in maskable]
    places = found.positions.reshape(n_rows, -1)
    flat = tokens.reshape(-1)
    assert (flat[places[used]] == labels[used]).all()
    assert not np.isin(labels[used], SPECIAL).any()
    assert len(set(places[used].tolist())) == used.sum(), "a place was chosen twice"
    assert (places // seq_len == np.arange(n_rows)[:, None]).all()
    untouched = np.ones(flat.size, dtype=bool)
    untouched[places[used]] = False
    assert (found.tokens[untouched] == flat[untouched]).all()


def test_token_zero_is_predicted_where_it_is_ordinary():
    vocabulary = Vocabulary(size=20, pad=19, cls=18, sep=17, mask=16, special_ids=frozenset({16, 17, 18, 19}))
    tokens = np.zeros((4, 32), dtype=np.int64)
    tokens[:, 0], tokens[:, -1] = 18, 17
    found = token_masking(vocabulary, 0.5)(rows_of(tokens), 0.5)
    assert (found.labels == 0).sum() == 4 * 15  # slots of a full row: half of 30


def test_shares_and_random_ids():
    found = masked(full(4000, 130))
    used = found.labels != IGNORED
    seen = found.tokens[found.positions[used]]
    n = used.sum()
    for share, wanted in (((seen == 4).mean(), 0.8), ((seen == 10).mean(), 0.1)):
        assert abs(share - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / n)
    random = seen[(seen != 4) & (seen != 10)]
    others = VOCABULARY.ordinary_ids[VOCABULARY.ordinary_ids != 10]
    assert set(random.tolist()) <= set(others.tolist()), "a random id is special or the original"
    counts = np.array([(random == other).sum() for other in others])
    expected = len(random) / len(others)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < len(others) + 5 * np.sqrt(2 * len(others))


def test_every_place_is_equally_likely():
    found = masked(full(20_000, 36))
    columns = (found.positions % 36)[found.labels != IGNORED]
    counts = np.bincount(columns, minlength=36)[1:-1]
    expected = counts.sum() / 34
    assert ((counts - expected) ** 2 / expected).sum() < 34 + 5 * np.sqrt(2 * 34)


def test_masks_depend_on_row_epoch_seed_and_purpose_alone():
    tokens = full(64, 68)
    base, rows = masked(tokens), rows_of(tokens)
    again = token_masking(VOCABULARY)(Rows(tokens[3:5], rows.places[3:5], rows.marks[3:5]), 0.15)
    assert (again.positions + 3 * 68 == base.positions.reshape(64, -1)[3:5].reshape(-1)).all()
    assert (again.tokens == base.tokens.reshape(64, 68)[3:5].reshape(-1)).all()

    def overlap(other: Masked) -> float:
        mine, theirs = set(base.positions.tolist()), set(other.positions.tolist())
        return len(mine & theirs) / len(mine)

    chance = 10 / 66
    rolled = base.positions.reshape(64, -1) % 68
    assert len({tuple(row) for row in rolled.tolist()}) == 64, "two rows share a mask"
    for other in (masked(tokens, epoch=1), masked(tokens, seed=1), masked(tokens, purpose="valid")):
        assert abs(overlap(other) - chance) < 0.08


def test_a_higher_rate_keeps_the_masks_of_a_lower_one():
    low, high = masked(full(8, 66)), masked(full(8, 66), 0.3)
    assert set(low.positions.tolist()) < set(high.positions.tolist())


@pytest.mark.parametrize(("mask", "random", "only"), [(1.0, 0.0, {4}), (0.0, 0.0, {10})])
def test_replacement_shares_are_configurable(mask, random, only):
    found = masked(full(16, 66), mask=mask, random=random)
    assert set(found.tokens[found.positions].tolist()) == only


def test_rows_without_ordinary_tokens_cost_nothing():
    found = masked(np.full((3, 20), 0))
    assert (found.labels == IGNORED).all()
    assert (found.tokens == 0).all()
