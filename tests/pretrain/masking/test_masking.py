"""Masking of single tokens: exact counts, labels and places. Other strategies, chances and the way to a batch are in
test_masking_units.py, test_masking_statistics.py and test_masking_stream.py."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.config import Config
from pretrain.masking import IGNORED, Vocabulary, mask_rate
from pretrain.masking.mask_rate import largest_mask_rate
from tests.support.drawn_rows import VOCABULARY
from tests.support.masks import rows_of, token_masking

SPECIAL = np.array(sorted(VOCABULARY.special_ids))


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


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [("linear", [0.3, 0.2625, 0.225, 0.1875, 0.15]), ("cosine", [0.3, 0.278033, 0.225, 0.171967, 0.15])],
)
def test_mask_rates(schedule, wanted):
    def config(**masking: Any) -> Config:
        return Config.model_validate(
            {"run": {"dir": "x"}, "data": {"train": "x"}, "train": {"steps": 5}, "masking": masking}
        )

    changing = config(rate={"schedule": schedule, "start": 0.3, "end": 0.15})
    assert [mask_rate(changing, step) for step in range(5)] == pytest.approx(wanted, abs=1e-6)
    assert mask_rate(changing, 9) == pytest.approx(0.15)
    assert mask_rate(changing, 0, 1) == 0.3
    assert largest_mask_rate(changing.masking) == 0.3
    constant = config(rate=0.2)
    assert {mask_rate(constant, step) for step in range(5)} == {0.2} == {largest_mask_rate(constant.masking)}
