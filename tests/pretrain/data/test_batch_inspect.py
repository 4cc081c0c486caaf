"""Readable rows of a batch: documents, predictions and their kinds; and differences of two batches."""

from dataclasses import replace

import numpy as np
import pytest

from pretrain.data import BatchRows
from pretrain.data.batch_view import ShownPrediction
from pretrain.masking import IGNORED
from tests.support.batches import VOCABULARY, batch_of, batches


def test_a_row_by_hand():
    seen = np.array([[2, 4, 11, 50, 3, 2, 13, 3, 0, 0]])
    batch = batch_of(seen, np.array([[12, IGNORED, 13, 10]]), np.array([[3, 0, 6, 1]]))
    batch = replace(batch, positions=np.array([0, 1, 2, 3, 4, 0, 1, 2, 0, 1]))
    first, second = BatchRows.of([batch]).documents(VOCABULARY)[0]
    assert (first.slot, first.original, first.seen) == (0, [2, 10, 11, 12, 3], [2, 4, 11, 50, 3])
    assert first.predictions == [ShownPrediction(1, 10, "mask"), ShownPrediction(3, 12, "random")]
    assert (second.slot, second.original, second.seen) == (5, [2, 13, 3], [2, 13, 3])
    assert second.predictions == [ShownPrediction(1, 13, "kept")]


@pytest.mark.parametrize("cut", [(2, 1), (3, 2), (1, 4)])
def test_the_cut_is_no_difference(cut):
    a, b = BatchRows.of(batches(row=3)), BatchRows.of(batches(*cut, row=3))
    assert a.difference(b) is None
    assert a.documents(VOCABULARY) == b.documents(VOCABULARY)


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


def test_another_number_of_predictions_is_a_difference():
    base = two_rows()
    fewer = replace(base, columns=np.where(base.columns == 1, -1, base.columns))
    assert base.difference(fewer) == "row 0 holds the same documents under other masks; 2 of 2 rows differ"


def test_the_order_of_predictions_counts_and_their_spare_room_does_not():
    base = two_rows()
    assert base.difference(replace(base, columns=base.columns[:, ::-1])) is not None
    wider = np.concatenate([base.columns, np.full((2, 3), -1)], axis=1)
    assert base.difference(replace(base, columns=wider)) is None
    assert replace(base, columns=wider).difference(base) is None
