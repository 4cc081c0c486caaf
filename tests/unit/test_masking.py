"""Token masking: exact counts, unbiased choices, and none of the usual mistakes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.masking.reference import IGNORED, TokenMasking
from pretrain.masking.vocabulary import Vocabulary

VOCABULARY = Vocabulary(size=50, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset({0, 1, 2, 3, 4, 30}))
SPECIAL = np.array(sorted(VOCABULARY.special_ids))


def masking(rate: float = 0.15, mask: float = 0.8, random: float = 0.1, seed: int = 0) -> TokenMasking:
    return TokenMasking(VOCABULARY, rate, mask, random, seed, "train")


def rows_of(n: int, epoch: int = 0) -> np.ndarray:
    return np.stack([np.full(n, epoch), np.zeros(n, dtype=np.int64), np.arange(n)], axis=1)


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
    mask = masking(rate, seed=seed)
    found = mask(tokens, rows_of(n_rows))
    labels = found.labels.reshape(n_rows, -1)
    assert labels.shape[1] == mask.slots(seq_len)
    used = labels != IGNORED
    maskable = VOCABULARY.is_ordinary[tokens].sum(axis=1)
    assert used.sum(axis=1).tolist() == [int(np.floor(rate * m + 0.5)) for m in maskable]
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
    found = TokenMasking(vocabulary, 0.5, 0.8, 0.1, 0, "train")(np.zeros((4, 32), dtype=np.int64), rows_of(4))
    assert (found.labels == 0).sum() == 4 * 15  # slots of a full row: half of 30


def test_shares_and_random_ids():
    tokens = np.full((4000, 130), 10)
    found = masking()(tokens, rows_of(4000))
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
    tokens = np.full((20_000, 34), 10)
    found = masking(0.15)(tokens, rows_of(20_000))
    columns = (found.positions % 34)[found.labels != IGNORED]
    counts = np.bincount(columns, minlength=34)
    expected = counts.sum() / 34
    assert ((counts - expected) ** 2 / expected).sum() < 34 + 5 * np.sqrt(2 * 34)


def test_masks_depend_on_row_epoch_seed_and_purpose_alone():
    tokens = np.full((64, 66), 10)
    base = masking()(tokens, rows_of(64))
    again = masking()(tokens[3:5], rows_of(64)[3:5])
    assert (again.positions + 3 * 66 == base.positions.reshape(64, -1)[3:5].reshape(-1)).all()
    assert (again.tokens == base.tokens.reshape(64, 66)[3:5].reshape(-1)).all()

    def overlap(other) -> float:
        mine, theirs = set(base.positions.tolist()), set(other.positions.tolist())
        return len(mine & theirs) / len(mine)

    chance = 10 / 66
    rolled = base.positions.reshape(64, -1) % 66
    assert len({tuple(sorted(row)) for row in rolled.tolist()}) == 64, "two rows share a mask"
    valid = TokenMasking(VOCABULARY, 0.15, 0.8, 0.1, 0, "valid")
    for other in (masking()(tokens, rows_of(64, 1)), masking(seed=1)(tokens, rows_of(64)), valid(tokens, rows_of(64))):
        assert abs(overlap(other) - chance) < 0.08


def test_a_higher_rate_keeps_the_masks_of_a_lower_one():
    tokens = np.full((8, 66), 10)
    low, high = masking(0.15)(tokens, rows_of(8)), masking(0.3)(tokens, rows_of(8))
    assert set(low.positions.tolist()) < set(high.positions.tolist())


@pytest.mark.parametrize(("mask", "random", "only"), [(1.0, 0.0, {4}), (0.0, 0.0, {10})])
def test_replacement_shares_are_configurable(mask, random, only):
    found = masking(mask=mask, random=random)(np.full((16, 66), 10), rows_of(16))
    assert set(found.tokens[found.positions].tolist()) == only


def test_rows_without_ordinary_tokens_cost_nothing():
    found = masking()(np.full((3, 20), 0), rows_of(3))
    assert (found.labels == IGNORED).all()
    assert (found.tokens == 0).all()
