"""Demonstration of dynamic masking: the same rows visited repeatedly, each time under the masks of another epoch.

Rows are packed and masked as in training. Training also repacks the data set in each epoch; here the rows of the first
epoch are kept, so that their masks can be compared.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pretrain.config import Config
from pretrain.data.batch import lay_out
from pretrain.data.batch_view import RowArrays
from pretrain.data.stream import Position, RowStream
from pretrain.data.window import BlockReader
from pretrain.masking import IGNORED, WORD_START, MaskedTokens, Rows, Vocabulary
from pretrain.masking.mask_rate import mask_rate
from pretrain.masking.units import concatenated_ranges


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
