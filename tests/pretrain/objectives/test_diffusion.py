"""Masked diffusion: rates, exact numbers of masks, weights, and the bound that they estimate."""

import math

import numpy as np
import pytest

from pretrain.config import Config
from pretrain.masking import IGNORED, Rows, Vocabulary
from pretrain.objectives import objective_of
from tests.support.configs import least_config
from tests.support.masks import rows_of

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = Vocabulary(size=40, pad=PAD, cls=CLS, sep=SEP, mask=MASK, special_ids=frozenset(range(5)))


def config(**diffusion: str) -> Config:
    return least_config(objective="diffusion", masking={"diffusion": diffusion})


def repeated(tokens: list[int], times: int) -> Rows:
    """The same row with many places in the stream, so with other draws."""
    return rows_of(np.tile(tokens, (times, 1)))


def test_exactly_the_drawn_share_of_ordinary_tokens_is_masked_and_predicted():
    tokens = [CLS, 5, 6, UNK, 7, SEP, CLS, 8, 9, 10, SEP, PAD]
    rows = repeated(tokens, 4000)
    objective = objective_of(config(), VOCABULARY, 3, "train")
    found = objective(rows, 1.0)
    seen, labels = found.tokens.reshape(rows.tokens.shape), found.labels.reshape(len(rows.tokens), -1)
    positions, weights = found.positions.reshape(labels.shape), found.weights.reshape(labels.shape)
    assert labels.shape[1] == objective.slots(12) == 10
    assert found.weights.dtype == np.float32
    masked = seen == MASK
    assert np.array_equal(seen[~masked], rows.tokens[~masked])
    counts = masked.sum(axis=1)
    assert np.bincount(counts, minlength=7)[1:] == pytest.approx(4000 / 6, abs=5 * math.sqrt(4000 / 6))
    assert counts.min() == 1
    assert not masked[:, [0, 3, 5, 6, 10, 11]].any()
    for row in range(0, 4000, 97):
        slots = np.flatnonzero(masked[row])
        used = labels[row] != IGNORED
        assert (positions[row][used] - 12 * row).tolist() == slots.tolist()
        assert labels[row][used].tolist() == rows.tokens[row, slots].tolist()
        assert weights[row][used] == pytest.approx(6 / counts[row])
        assert not weights[row][~used].any()
    assert weights.sum(axis=1) == pytest.approx(6, rel=1e-6)
    two = masked[counts == 2][:, [1, 2, 4, 7, 8, 9]]
    pairs = np.bincount(two @ (1 << np.arange(6)), minlength=64)
    assert (pairs > 0).sum() == math.comb(6, 2)
    assert pairs[pairs > 0] == pytest.approx(len(two) / 15, abs=5 * math.sqrt(len(two) / 15))


def test_a_row_without_ordinary_tokens_has_no_prediction():
    found = objective_of(config(), VOCABULARY, 0, "train")(repeated([CLS, UNK, SEP, PAD], 2), 1.0)
    assert (found.labels == IGNORED).all()
    assert not found.weights.any()


def test_constant_weights_count_each_prediction_once():
    found = objective_of(config(weight="constant"), VOCABULARY, 0, "train")(repeated([CLS, 5, 6, UNK, 7, SEP], 9), 1.0)
    assert (found.weights == (found.labels != IGNORED)).all()
