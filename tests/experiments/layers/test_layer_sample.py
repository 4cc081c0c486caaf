"""Sample of positions for layer analysis: the stated kinds, keyed by seed."""

from collections import Counter

import numpy as np
import pytest

from data_prep.common.errors import UserError
from experiments.layers import position_sample
from experiments.layers.measures import GROUPS
from experiments.layers.position_sample import PositionSample, SampleSettings, held_out_rows, masked_sample
from pretrain.masking import Vocabulary
from tests.support.datasets import make_dataset

SETTINGS = SampleSettings(positions=2000, tokens=6, clusters=10, seq_len=32)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """40 documents of 20 to 60 tokens of 5 to 39, the small ones frequent; even ids begin words."""
    rng = np.random.default_rng(0)
    documents = [5 + np.minimum(rng.geometric(0.1, int(rng.integers(20, 60))), 34) for _ in range(40)]
    starts = [document % 2 == 0 for document in documents]
    return make_dataset(tmp_path_factory.mktemp("sample") / "data", documents, 40, word_starts=starts)


@pytest.fixture(scope="module")
def vocabulary(dataset) -> Vocabulary:
    return Vocabulary.of(dataset.manifest.tokenizer)


@pytest.fixture(scope="module")
def masked(dataset, vocabulary) -> PositionSample:
    return masked_sample(held_out_rows(dataset, SETTINGS, vocabulary), vocabulary, SETTINGS)


def test_positions_are_of_their_kind(dataset, vocabulary, masked):
    original = held_out_rows(dataset, SETTINGS, vocabulary).tokens
    assert len(masked.places["predicted"]) == SETTINGS.positions  # thinned from some 3,600
    for kind, places in masked.places.items():
        assert len(places) > 100
        assert vocabulary.is_ordinary[places.target].all()
        np.testing.assert_array_equal(masked.tokens[places.row, places.column], places.seen)
        np.testing.assert_array_equal(original[places.row % len(original), places.column], places.target)
        same, hidden = places.seen == places.target, places.seen == vocabulary.mask
        right = {"masked": hidden, "kept": same, "unmasked": same, "random": ~same & ~hidden}
        assert right.get(kind, ~hidden | ~same).all()
    drawn = Counter(masked.places["random"].seen.tolist())
    assert sorted(drawn) == masked.frequent.tolist()
    assert min(drawn.values()) > 0.5 * max(drawn.values())
    taken = {kind: set(zip(places.row, places.column, strict=True)) for kind, places in masked.places.items()}
    for one, other in (("masked", "kept"), ("random", "kept"), ("predicted", "unmasked")):
        assert not taken[one] & taken[other]


def test_a_row_that_comes_again_has_other_masks_and_stays_in_its_group(dataset, vocabulary, masked):
    different = len(held_out_rows(dataset, SETTINGS, vocabulary).tokens)
    assert len(masked.tokens) > 4 * different
    for places in masked.places.values():
        np.testing.assert_array_equal(places.group, places.row % different % GROUPS)
    assert different % GROUPS  # or the test above would show nothing
    assert (masked.tokens[:different] != masked.tokens[different : 2 * different]).any(axis=1).mean() > 0.9


def test_a_causal_target_is_the_next_token(dataset, vocabulary):
    rows = held_out_rows(dataset, SETTINGS, vocabulary)
    sample = position_sample.plain_sample(rows, vocabulary, SETTINGS)
    places = sample.places["all"]
    np.testing.assert_array_equal(sample.tokens, rows.tokens)
    np.testing.assert_array_equal(rows.tokens[places.row, places.column], places.seen)
    np.testing.assert_array_equal(rows.tokens[places.row, places.column + 1], places.target)
    assert vocabulary.is_ordinary[places.seen].all()
    assert vocabulary.is_ordinary[places.target].all()


def test_samples_are_keyed(dataset, vocabulary, masked):
    again = masked_sample(held_out_rows(dataset, SETTINGS, vocabulary), vocabulary, SETTINGS)
    np.testing.assert_array_equal(again.tokens, masked.tokens)
    np.testing.assert_array_equal(again.places["masked"].column, masked.places["masked"].column)
    other = SampleSettings(2000, 6, 10, 32, seed=1)
    another = masked_sample(held_out_rows(dataset, other, vocabulary), vocabulary, other)
    assert not np.array_equal(another.tokens, masked.tokens)


def test_frequent_tokens_are_the_most_frequent_ordinary_ones(dataset, vocabulary):
    rows = held_out_rows(dataset, SETTINGS, vocabulary)
    counts = Counter(id for id in rows.tokens.reshape(-1).tolist() if vocabulary.is_ordinary[id])
    found = position_sample.frequent_tokens(rows, vocabulary, 6)
    assert min(counts[id] for id in found.tolist()) >= sorted(counts.values())[-6]
    assert len(found) == 6


def test_too_little_text_is_said(tmp_path, vocabulary):
    few = make_dataset(tmp_path / "few", [[6, 7, 8]] * 5, 40)
    with pytest.raises(UserError, match="makes 5 rows of 32 tokens"):
        held_out_rows(few, SETTINGS, vocabulary)
    same = make_dataset(tmp_path / "same", [[6, 6, 6]] * 20, 40)
    with pytest.raises(UserError, match="fewer than two different tokens"):
        masked_sample(held_out_rows(same, SETTINGS, vocabulary), vocabulary, SETTINGS)
