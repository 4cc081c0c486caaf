"""Readable view of batches: documents and masks of each row, and the difference between two global batches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pretrain.data.batch import Batch
from pretrain.masking import IGNORED, Vocabulary

Kind = Literal["mask", "random", "kept", "next"]


@dataclass(frozen=True)
class RowArrays:
    """The rows of one or more micro-batches, one after the other.

    seen [R, S] int64: ids that the model sees.
    original [R, S] int64: ids before masking.
    positions [R, S] int64: place in the document; a document begins wherever it is 0.
    columns [R, M] int64: slots of the row that are predicted, in the order of the model input; -1 if unused.
    causal: whether each of them is predicted by the slot before it.
    """

    seen: NDArray[np.int64]
    original: NDArray[np.int64]
    positions: NDArray[np.int64]
    columns: NDArray[np.int64]
    causal: bool = False

    def __len__(self) -> int:
        return len(self.seen)

    @property
    def seq_len(self) -> int:
        """Slots of a row."""
        return self.seen.shape[1]

    def rows(self, first: int, last: int) -> "RowArrays":
        """The rows from `first` to before `last`."""
        part = slice(first, last)
        return replace(
            self,
            seen=self.seen[part],
            original=self.original[part],
            positions=self.positions[part],
            columns=self.columns[part],
        )


@dataclass(frozen=True)
class ShownPrediction:
    """A predicted token: its place in the document, its id, and how it was replaced.

    kind: the model sees [MASK] in its place, a random token, or the token itself; "next": it is predicted by the slot
        before it, which does not see it.
    """

    place: int
    label: int
    kind: Kind


@dataclass(frozen=True)
class BatchDocument:
    """A document, or a piece of a long one, in a row. Specials are included; `slot` is its first slot in the row."""

    slot: int
    original: list[int]
    seen: list[int]
    predictions: list[ShownPrediction]


def rows_of(batches: Sequence[Batch], causal: bool = False) -> RowArrays:
    """The rows of micro-batches of one sequence length, in their order. There is at least one.

    If `causal`, a slot predicts the token of the next slot.
    """
    seq_len = batches[0].seq_len
    seen = np.concatenate([batch.tokens.reshape(-1, seq_len) for batch in batches])
    positions = np.concatenate([batch.positions.reshape(-1, seq_len) for batch in batches])
    labels = np.concatenate([batch.labels.reshape(len(batch.tokens) // seq_len, -1) for batch in batches])
    places = np.concatenate([batch.masked_positions for batch in batches]).reshape(labels.shape)
    columns = np.where(labels == IGNORED, -1, places % seq_len + causal)
    row, slot = np.nonzero(columns >= 0)
    original = seen.copy()
    original[row, columns[row, slot]] = labels[row, slot]
    return RowArrays(seen, original, positions, columns, causal)


def documents_of(rows: RowArrays, vocabulary: Vocabulary) -> list[list[BatchDocument]]:
    """The documents of each row, padding left out; predictions in order of place."""
    return [_documents(rows, row, vocabulary) for row in range(len(rows))]


def _documents(rows: RowArrays, row: int, vocabulary: Vocabulary) -> list[BatchDocument]:
    seen, original = rows.seen[row].tolist(), rows.original[row].tolist()
    starts = np.flatnonzero(rows.positions[row] == 0).tolist()
    columns = np.sort(rows.columns[row])
    found = []
    for start, end in zip(starts, [*starts[1:], rows.seq_len], strict=True):
        if original[start] == vocabulary.pad:
            continue
        here = columns[(columns >= start) & (columns < end)].tolist()
        kinds = ["next" if rows.causal else _kind(seen[c], original[c], vocabulary) for c in here]
        predictions = [ShownPrediction(c - start, original[c], kind) for c, kind in zip(here, kinds, strict=True)]
        found.append(BatchDocument(start, original[start:end], seen[start:end], predictions))
    return found


def _kind(seen: int, original: int, vocabulary: Vocabulary) -> Kind:
    return "mask" if seen == vocabulary.mask else "kept" if seen == original else "random"


def difference(a: RowArrays, b: RowArrays) -> str | None:
    """Describe briefly how the second global batch differs; None if both are bit-for-bit equal.

    Compares tokens, document boundaries, positions, labels, and the predicted places with their order. The split into
    micro-batches does not matter. Rows count from 0.
    """
    if a.seq_len != b.seq_len:
        return f"rows have {a.seq_len} slots in the first and {b.seq_len} in the second"
    if len(a) != len(b):
        return f"the first has {len(a)} rows and the second {len(b)}"
    other_documents = (a.original != b.original).any(axis=1) | (a.positions != b.positions).any(axis=1)
    width = max(a.columns.shape[1], b.columns.shape[1])
    other_masks = (_wide(a.columns, width) != _wide(b.columns, width)).any(axis=1) | (a.seen != b.seen).any(axis=1)
    rows = np.flatnonzero(other_documents | other_masks)
    if not len(rows):
        return None
    what = "other documents" if other_documents[rows[0]] else "the same documents under other masks"
    return f"row {rows[0]} holds {what}; {len(rows)} of {len(a)} rows differ"


def _wide(columns: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    return np.pad(columns, ((0, 0), (0, width - columns.shape[1])), constant_values=-1)
