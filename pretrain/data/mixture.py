"""Mixture of several data sets in one stream: the rows per source, as a function of the rows consumed so far.

Weights become integer quotas over a period of PERIOD rows. A keyed permutation orders each period. So every period
holds exactly the quotas, and the source of any row is known without the rows before it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.reading import typed
from pretrain.data.stream import Part, Position, RowStream
from pretrain.philox import derive_key, permute

PERIOD = 4096


@dataclass(frozen=True)
class MixturePosition:
    """Number of rows consumed, and the position of each source."""

    dealt: int
    sources: tuple[Position, ...]

    def next_epoch(self, sources: int) -> "MixturePosition":
        """The beginning of the next epoch of each source, or of the latest one if their number has changed."""
        epochs = [source.epoch for source in self.sources]
        if len(epochs) != sources:
            epochs = [max(epochs)] * sources
        return replace(self, sources=tuple(Position(epoch + 1) for epoch in epochs))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "MixturePosition":
        """Restore a position from the values of `to_json`; raises ValueError for other values."""
        position: MixturePosition = typed(cls, values)
        return position

    def after_seq_len(self, seq_len: int) -> "MixturePosition":
        """The same place after rows of `seq_len` slots, for a new row length."""
        return MixturePosition(self.dealt, tuple(source.after_seq_len(seq_len) for source in self.sources))


def quotas(weights: Sequence[float]) -> NDArray[np.int64]:
    """Rows of each source per period, in proportion to its weight, at least one each; largest-remainder rounding.

    Returns int64 [sources] with sum PERIOD.
    """
    shares = np.asarray(weights, dtype=np.float64) / sum(weights) * PERIOD
    rows = np.maximum(np.floor(shares).astype(np.int64), 1)
    while (left := PERIOD - int(rows.sum())) != 0:
        error = rows - shares
        if left > 0:
            rows[np.argmin(error)] += 1
        else:
            rows[np.argmax(np.where(rows > 1, error, -np.inf))] -= 1
    return rows


class Mixture:
    """An endless sequence of rows from several sources.

    Args:
        streams: the sources.
        weights: their shares of the rows.
        seed: keys the order of the sources.
    """

    def __init__(self, streams: Sequence[RowStream], weights: Sequence[float], seed: int):
        self.streams = streams
        self._upto = np.cumsum(quotas(weights))
        self._key = derive_key(seed, "mixture")

    def start(self) -> MixturePosition:
        """The position before the first row."""
        return MixturePosition(0, tuple(Position() for _ in self.streams))

    def take(self, position: MixturePosition, rows: int, seq_len: int) -> tuple[list[Part], MixturePosition]:
        """The next `rows` rows, source by source, and the position after them."""
        parts: list[Part] = []
        sources = list(position.sources)
        for number, count in enumerate(self.count_rows(position.dealt, rows).tolist()):
            taken, sources[number] = self.streams[number].take(sources[number], count, seq_len)
            parts.extend(taken)
        return parts, MixturePosition(position.dealt + rows, tuple(sources))

    def count_rows(self, dealt: int, rows: int) -> NDArray[np.int64]:
        """Count how many of rows dealt .. dealt + rows - 1 come from each source: int64 [sources]."""
        if len(self.streams) == 1:
            return np.array([rows])
        counts = np.zeros(len(self.streams), dtype=np.int64)
        end = dealt + rows
        while dealt < end:
            period, first = divmod(dealt, PERIOD)
            last = min(PERIOD, first + end - dealt)
            numbers = permute(np.arange(first, last), PERIOD, self._key, period)
            counts += np.bincount(np.searchsorted(self._upto, numbers, side="right"), minlength=len(counts))
            dealt += last - first
        return counts

    def release(self) -> None:
        """Release the memory of the latest windows."""
        for stream in self.streams:
            stream.release()

    def close(self) -> None:
        """Stop the reading threads."""
        for stream in self.streams:
            stream.close()
