"""Mixture of several data sets in one stream: the rows per source, as a function of the rows consumed so far.

Weights become integer quotas over a period of PERIOD rows. A keyed permutation orders each period. So every period
holds exactly the quotas, and the source of any row is known without the rows before it. The quotas of many sources are
exact in a cycle of periods (pretrain.data.quotas).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pretrain.data.quotas import Quotas
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

    def of_sources(self, number: int) -> "MixturePosition":
        """The same place for this number of sources: those at the end are new, or have not been read yet."""
        return replace(self, sources=(*self.sources[:number], *[Position()] * (number - len(self.sources))))

    def restarted(self, sources: Sequence[int]) -> "MixturePosition":
        """The next beginning of these sources."""
        return replace(
            self, sources=tuple(source.restarted() if n in sources else source for n, source in enumerate(self.sources))
        )

    def after_seq_len(self, seq_len: int) -> "MixturePosition":
        """The same place after rows of `seq_len` slots, for a new row length."""
        return MixturePosition(self.dealt, tuple(source.after_seq_len(seq_len) for source in self.sources))


class Mixture:
    """An endless sequence of rows from several sources.

    Args:
        streams: the sources.
        weights: their shares of the rows, in each phase of the run; 0 for a source that a phase does not read.
        seed: keys the order of the sources.
    """

    def __init__(self, streams: Sequence[RowStream], weights: Sequence[Sequence[float]], seed: int):
        self.streams = streams
        self._quotas = [Quotas.of(of_phase, PERIOD) for of_phase in weights]
        self._key = derive_key(seed, "mixture")

    def start(self) -> MixturePosition:
        """The position before the first row."""
        return MixturePosition(0, tuple(Position() for _ in self.streams))

    def sources_of(self, phase: int) -> list[int]:
        """The sources that a phase reads."""
        return np.flatnonzero(self._quotas[phase].rows).tolist()

    def take(
        self, position: MixturePosition, rows: int, seq_len: int, phase: int = 0
    ) -> tuple[list[Part], MixturePosition]:
        """The next `rows` rows, source by source, and the position after them."""
        parts: list[Part] = []
        sources = list(position.sources)
        for number, count in enumerate(self.count_rows(position.dealt, rows, phase).tolist()):
            if count:
                taken, sources[number] = self.streams[number].take(sources[number], count, seq_len, phase)
                parts.extend(taken)
        return parts, MixturePosition(position.dealt + rows, tuple(sources))

    def count_rows(self, dealt: int, rows: int, phase: int = 0) -> NDArray[np.int64]:
        """Count how many of rows dealt .. dealt + rows - 1 come from each source: int64 [sources]."""
        if len(self.streams) == 1:
            return np.array([rows])
        (period, first), (last_period, last) = divmod(dealt, PERIOD), divmod(dealt + rows, PERIOD)
        if period == last_period:
            return self._count_in(period, first, last, phase)
        ends = self._count_in(period, first, PERIOD, phase) + self._count_in(last_period, 0, last, phase)
        return ends + self._quotas[phase].before(last_period) - self._quotas[phase].before(period + 1)

    def _count_in(self, period: int, first: int, last: int, phase: int) -> NDArray[np.int64]:
        numbers = permute(np.arange(first, last), PERIOD, self._key, period)
        ends = np.cumsum(self._quotas[phase].before(period + 1) - self._quotas[phase].before(period))
        return np.bincount(np.searchsorted(ends, numbers, side="right"), minlength=len(self.streams))

    def release(self) -> None:
        """Release the memory of the latest windows."""
        for stream in self.streams:
            stream.release()

    def close(self) -> None:
        """Stop the reading threads."""
        for stream in self.streams:
            stream.close()
