"""Several data sets in one stream: how many rows of a batch each gives, as a function of the rows dealt before.

Weights become whole quotas over a period of PERIOD rows, and a keyed permutation orders each period like a deck of
cards: any whole period holds exactly the quotas, and any row's source is known without those before it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.reading import typed
from pretrain.data.order import permute
from pretrain.data.stream import Part, Position, RowStream
from pretrain.philox import derive_key

PERIOD = 4096


@dataclass(frozen=True)
class MixturePosition:
    """Rows dealt so far, and where each source stands."""

    dealt: int
    sources: tuple[Position, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "MixturePosition":
        """What `to_json` gave, as JSON brings it back; raises ValueError for anything else."""
        found: MixturePosition = typed(cls, values)
        return found

    def after_seq_len(self, seq_len: int) -> "MixturePosition":
        """The same place, for rows of another length than the `seq_len` read so far."""
        return MixturePosition(self.dealt, tuple(source.after_seq_len(seq_len) for source in self.sources))


def quotas(weights: Sequence[float]) -> NDArray[np.int64]:
    """Rows of each source in a period, in proportion to its weight: largest remainders, but at least one row each.

    int64 [sources], adding up to PERIOD.
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
        """Before the first row."""
        return MixturePosition(0, tuple(Position() for _ in self.streams))

    def take(self, position: MixturePosition, rows: int, seq_len: int) -> tuple[list[Part], MixturePosition]:
        """The next `rows` rows, source by source, and the position after them."""
        parts: list[Part] = []
        sources = list(position.sources)
        for number, count in enumerate(self.deal(position.dealt, rows).tolist()):
            found, sources[number] = self.streams[number].take(sources[number], count, seq_len)
            parts.extend(found)
        return parts, MixturePosition(position.dealt + rows, tuple(sources))

    def deal(self, dealt: int, rows: int) -> NDArray[np.int64]:
        """How many of the rows number dealt .. dealt + rows - 1 come from each source: int64 [sources]."""
        if len(self.streams) == 1:
            return np.array([rows])
        counts = np.zeros(len(self.streams), dtype=np.int64)
        end = dealt + rows
        while dealt < end:
            period, first = divmod(dealt, PERIOD)
            last = min(PERIOD, first + end - dealt)
            cards = permute(np.arange(first, last), PERIOD, self._key, period)
            counts += np.bincount(np.searchsorted(self._upto, cards, side="right"), minlength=len(counts))
            dealt += last - first
        return counts

    def release(self) -> None:
        """Give up the memory of the latest windows."""
        for stream in self.streams:
            stream.release()

    def close(self) -> None:
        """End the reading threads."""
        for stream in self.streams:
            stream.close()
