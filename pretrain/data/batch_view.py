"""Readable view of batches: documents and masks of each row, and the difference between two global batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pretrain.config import Config
from pretrain.data.batch import Batch, lay_out
from pretrain.data.stream import Position, RowStream
from pretrain.data.window import BlockReader
from pretrain.masking import IGNORED, WORD_START, MaskedTokens, Rows, Vocabulary
from pretrain.masking.mask_rate import mask_rate
from pretrain.masking.units import concatenated_ranges

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


@dataclass(frozen=True)
class PackedRows:
    """The first rows of an epoch, in the order of their text, before masking.

    positions [R, S] int64: place in the document.
    others: number of rows packed with them that are not shown.
    """

    rows: Rows
    positions: NDArray[np.int64]
    others: int


@dataclass(frozen=True)
class Visit:
    """One visit of the rows.

    epoch: the key of the masks. rate: share of ordinary tokens to predict.
    ordinary, predicted: [R, S] bool.
    times [R, S] int64: in how many visits so far, this one included, a token was predicted.
    units [R, S] int64: the number of the unit that an ordinary token belongs to; other slots have no meaning.
    """

    epoch: int
    rate: float
    rows: RowArrays
    ordinary: NDArray[np.bool_]
    predicted: NDArray[np.bool_]
    times: NDArray[np.int64]
    units: NDArray[np.int64]


class _OneDocument:
    """A data set of one document (pretrain.data.window.Blocks)."""

    n_blocks = 1

    def __init__(self, ids: NDArray[np.uint32]):
        self._ids, self.dtype = ids, ids.dtype

    def document_lengths(self, block: int) -> NDArray[np.uint32]:
        return np.array([len(self._ids)], dtype=np.uint32)

    def read_tokens(self, block: int, out: NDArray[np.unsignedinteger]) -> None:
        out[:] = self._ids


def rows_of_text(
    ids: NDArray[np.uint32], word_starts: NDArray[np.bool_], config: Config, vocabulary: Vocabulary, most: int
) -> PackedRows:
    """Pack a text of ids [T] as a data set of one document; return its first `most` rows, at least one."""
    marks = word_starts * np.uint8(WORD_START)
    reader = BlockReader(_OneDocument(ids), marks=lambda tokens, block: marks)
    stream = RowStream(reader, config.run.seed, 1, config.data.packing, look_ahead=False)
    try:
        packed = first_rows(stream, stream.window(Position(), config.data.seq_len).end_row, config, vocabulary)
    finally:
        stream.close()
    rows = Rows(packed.rows.tokens[:most], packed.rows.places[:most], packed.rows.marks[:most])
    return PackedRows(rows, packed.positions[:most], len(packed.positions) - len(rows.tokens))


def first_rows(stream: RowStream, most: int, config: Config, vocabulary: Vocabulary) -> PackedRows:
    """The first rows, at most `most`, of a data set's first window."""
    seq_len = config.data.seq_len
    packed = stream.window(Position(), seq_len).end_row
    parts, _ = stream.take(Position(), min(most, packed), seq_len)
    laid_out = lay_out(parts, min(most, packed), seq_len, vocabulary)
    lengths = np.diff(laid_out.ends, prepend=0)
    positions = concatenated_ranges(np.zeros(len(lengths), dtype=np.int64), lengths).reshape(laid_out.rows.tokens.shape)
    return PackedRows(laid_out.rows, positions, packed - len(positions))


def visits(packed: PackedRows, objective: MaskedTokens, config: Config, number: int) -> Iterator[Visit]:
    """Mask the rows for epochs 0, 1, ...; a changing rate reaches `end` at the last visit.

    With masking.static_epochs, the masks of the first epochs repeat.
    """
    static = config.masking.static_epochs
    ordinary = objective.vocabulary.is_ordinary[packed.rows.tokens]
    times = np.zeros(ordinary.shape, dtype=np.int64)
    for visit in range(number):
        epoch = visit % static if static else visit
        rows = replace(packed.rows, places=packed.rows.places + np.array([epoch, 0, 0]))
        rate = mask_rate(config.masking, visit, number)
        masked = objective(rows, rate)
        shape = rows.tokens.shape
        used = (masked.labels != IGNORED).reshape(shape[0], -1)
        columns = np.where(used, masked.positions.reshape(used.shape) % shape[1], -1)
        predicted = np.zeros(shape, dtype=np.bool_)
        predicted.reshape(-1)[masked.positions[used.reshape(-1)]] = True
        times = times + predicted
        units = objective.units(rows, ordinary)
        begins = ordinary if units is None else units.begins
        yield Visit(
            epoch,
            rate,
            RowArrays(masked.tokens.reshape(shape), rows.tokens, packed.positions, columns),
            ordinary,
            predicted,
            times,
            np.cumsum(begins).reshape(shape) - 1,
        )
