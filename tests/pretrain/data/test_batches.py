"""Batches: a checksum that no cut or order of rows changes, readable rows, and differences of two batches."""

from dataclasses import replace

import numpy as np
import pytest

from pretrain.data import Batch, BatchRows
from pretrain.data.batch_hash import row_factors, row_hashes
from pretrain.data.batch_view import ShownPrediction
from pretrain.masking import IGNORED
from pretrain.philox import derive_key, draw
from tests.support.batches import ROWS, VOCABULARY, batch_of, batches

WHOLE = batches(row=3)[0]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_any_cut_is_the_same_batch(world_size, accumulation):
    if ROWS % (world_size * accumulation) == 0:
        parts = batches(world_size, accumulation, row=3)
        assert len(parts) == world_size * accumulation
        assert sum(part.checksum() for part in parts) == WHOLE.checksum()
        assert sum(float(part.checksum()) for part in parts) == WHOLE.checksum()
        whole, rows = BatchRows.of([WHOLE]), BatchRows.of(parts)
        assert whole.difference(rows) is None
        assert whole.documents(VOCABULARY) == rows.documents(VOCABULARY)


def hashes_of(batch: Batch) -> list[int]:
    return row_hashes(batch.tokens, batch.masked_positions, batch.labels, row_factors(batch.seq_len)).tolist()


def rows_of(rng: np.random.Generator, rows: int, seq_len: int, slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, labels and columns of random rows, some slots unused."""
    columns = np.argsort(rng.random((rows, seq_len)), axis=1)[:, :slots]
    labels = np.where(rng.random(columns.shape) < 0.8, rng.integers(0, 30000, columns.shape), IGNORED)
    return rng.integers(0, 30000, (rows, seq_len)), labels, np.where(labels == IGNORED, 0, columns)


@pytest.mark.parametrize(("rows", "seq_len", "slots"), [(3, 9, 4), (1, 2, 1), (5, 40, 39)])
def test_a_row_s_hash_is_the_formula_s(rows, seq_len, slots):
    """By the sum in Python's integers, and a golden with a label of 0: journals of finished runs hold these numbers."""
    tokens, labels, columns = rows_of(np.random.default_rng(2), rows, seq_len, slots)
    factors = draw(derive_key(0, "batch-checksum"), 2 * seq_len + 1, seq_len, 0, 0).tolist()
    wanted = []
    for row in range(rows):
        total = factors[0] + sum(t * f for t, f in zip(tokens[row].tolist(), factors[1 : seq_len + 1], strict=True))
        for label, column in zip(labels[row].tolist(), columns[row].tolist(), strict=True):
            total += 0 if label == IGNORED else (label + 1) * factors[seq_len + 1 + column]
        mixed = total % 2**64
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
        wanted.append((mixed ^ mixed >> 31) >> 32)
    assert hashes_of(batch_of(tokens, labels, columns)) == wanted
    golden = batch_of(np.arange(12).reshape(2, 6), np.array([[3, IGNORED], [0, 9]]), np.array([[3, 0], [2, 1]]))
    assert golden.checksum() == 5403754047


def test_a_row_by_hand():
    seen = np.array([[2, 4, 11, 50, 3, 2, 13, 3, 0, 0]])
    batch = batch_of(seen, np.array([[12, IGNORED, 13, 10]]), np.array([[3, 0, 6, 1]]))
    batch = replace(batch, positions=np.array([0, 1, 2, 3, 4, 0, 1, 2, 0, 1]))
    first, second = BatchRows.of([batch]).documents(VOCABULARY)[0]
    assert (first.slot, first.original, first.seen) == (0, [2, 10, 11, 12, 3], [2, 4, 11, 50, 3])
    assert first.predictions == [ShownPrediction(1, 10, "mask"), ShownPrediction(3, 12, "random")]
    assert (second.slot, second.original, second.seen) == (5, [2, 13, 3], [2, 13, 3])
    assert second.predictions == [ShownPrediction(1, 13, "kept")]


def test_differences_are_named():
    base = BatchRows.of(batches())
    assert base.difference(BatchRows.of(batches(seq_len=24))) == "rows have 16 slots in the first and 24 in the second"
    assert base.difference(base.rows(0, 8)) == "the first has 12 rows and the second 8"
    other = BatchRows.of(batches(seed=6))
    differ = int(((base.seen != other.seen).any(axis=1) | (base.columns != other.columns).any(axis=1)).sum())
    assert differ > 8
    assert base.difference(other) == f"row 0 holds the same documents under other masks; {differ} of 12 rows differ"
    assert "holds other documents; " in base.difference(BatchRows.of(batches(row=1)))
    assert base.difference(BatchRows.of(batches(rate=0.5))).startswith("row 0 holds the same documents under")


def two_rows(**changes: int) -> BatchRows:
    """Two rows; the number at the slot of each named array is one higher, which is in the second row."""
    seen = np.array([[2, 4, 11, 50, 21, 3], [2, 4, 15, 50, 22, 3]])
    labels, columns = np.array([[12, IGNORED, 10], [17, IGNORED, 18]]), np.array([[3, 0, 1], [3, 0, 1]])
    batch = batch_of(seen, labels, columns)
    for name, slot in changes.items():
        array = getattr(batch, name).copy()
        array[slot] += 1
        batch = replace(batch, **{name: array})
    return BatchRows.of([batch])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"tokens": 8}, "other documents"),
        ({"positions": 11}, "other documents"),
        ({"labels": 3}, "other documents"),
        ({"tokens": 9}, "the same documents under other masks"),
    ],
)
def test_one_changed_number_is_found(changes, what):
    assert two_rows().difference(two_rows(**changes)) == f"row 1 holds {what}; 1 of 2 rows differ"


def test_the_number_and_order_of_predictions_count_and_their_spare_room_does_not():
    base = two_rows()
    fewer = replace(base, columns=np.where(base.columns == 1, -1, base.columns))
    assert base.difference(fewer) == "row 0 holds the same documents under other masks; 2 of 2 rows differ"
    assert base.difference(replace(base, columns=base.columns[:, ::-1])) is not None
    wider = np.concatenate([base.columns, np.full((2, 3), -1)], axis=1)
    assert base.difference(replace(base, columns=wider)) is None
    assert replace(base, columns=wider).difference(base) is None
