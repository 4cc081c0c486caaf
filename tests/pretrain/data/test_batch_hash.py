"""The checksum of a batch: the same for any cut and order of rows, another for any other token, label or place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.data import Batch
from pretrain.data.batch_hash import row_factors, row_hashes
from pretrain.masking import IGNORED
from pretrain.philox import derive_key, draw
from tests.support.batches import ROWS, batch_of, batches

WHOLE = batches()[0]
CHECKSUM = WHOLE.checksum()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_any_cut_has_the_same_sum(world_size, accumulation):
    if ROWS % (world_size * accumulation) == 0:
        parts = batches(world_size, accumulation)
        assert len(parts) == world_size * accumulation
        assert sum(part.checksum() for part in parts) == CHECKSUM
        assert sum(float(part.checksum()) for part in parts) == CHECKSUM


def hashes_of(batch: Batch) -> list[int]:
    return row_hashes(batch.tokens, batch.masked_positions, batch.labels, row_factors(batch.seq_len)).tolist()


def rows_of(rng: np.random.Generator, rows: int, seq_len: int, slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, labels and columns of random rows, some slots unused."""
    columns = np.argsort(rng.random((rows, seq_len)), axis=1)[:, :slots]
    labels = np.where(rng.random(columns.shape) < 0.8, rng.integers(0, 30000, columns.shape), IGNORED)
    return rng.integers(0, 30000, (rows, seq_len)), labels, np.where(labels == IGNORED, 0, columns)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(2, 40), st.data())
def test_what_changes_it_and_what_does_not(seed, rows, seq_len, data):
    rng = np.random.default_rng(seed)
    tokens, labels, columns = rows_of(rng, rows, seq_len, data.draw(st.integers(1, seq_len - 1)))
    found = batch_of(tokens, labels, columns).checksum()
    assert 0 <= found < rows << 32
    order, slots = rng.permutation(rows), rng.permutation(labels.shape[1])
    assert batch_of(tokens[order], labels[order], columns[order]).checksum() == found
    assert batch_of(tokens, labels[:, slots], columns[:, slots]).checksum() == found
    row, column, slot = (int(rng.integers(n)) for n in (rows, seq_len, labels.shape[1]))
    other = tokens.copy()
    other[row, column] += 1
    assert batch_of(other, labels, columns).checksum() != found
    other = labels.copy()
    other[row, slot] = 7 if labels[row, slot] == IGNORED else IGNORED
    assert batch_of(tokens, other, columns).checksum() != found
    free = sorted(set(range(seq_len)) - set(columns[row].tolist()))
    if labels[row, slot] != IGNORED and free:
        other = columns.copy()
        other[row, slot] = free[0]
        assert batch_of(tokens, labels, other).checksum() != found


def test_a_row_s_hash_is_the_formula_s():
    """By the sum in Python's integers, and a golden with a label of 0: journals of finished runs hold these numbers."""
    tokens, labels, columns = rows_of(np.random.default_rng(2), 3, 9, 4)
    factors = draw(derive_key(0, "batch-checksum"), 19, 9, 0, 0).tolist()
    wanted = []
    for row in range(3):
        total = factors[0] + sum(t * f for t, f in zip(tokens[row].tolist(), factors[1:10], strict=True))
        for label, column in zip(labels[row].tolist(), columns[row].tolist(), strict=True):
            total += 0 if label == IGNORED else (label + 1) * factors[10 + column]
        mixed = total % 2**64
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
        wanted.append((mixed ^ mixed >> 31) >> 32)
    assert hashes_of(batch_of(tokens, labels, columns)) == wanted
    golden = batch_of(np.arange(12).reshape(2, 6), np.array([[3, IGNORED], [0, 9]]), np.array([[3, 0], [2, 1]]))
    assert golden.checksum() == 5403754047
