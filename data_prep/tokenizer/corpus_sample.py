"""A bounded sample of a corpus, spread over its inputs: what a tokenizer learns from."""

from collections.abc import Iterator, Sequence

from data_prep.cache import Cache
from data_prep.sources import Examined, Options, RowReader, SourceInput, examine
from data_prep.urls import shown

MIN_SHARE = 1_000_000


class CorpusSample:
    """Documents from the beginnings of all inputs, as often as they are iterated over, the same each time.

    Each input gives a share of `sample_bytes` (UTF-8) by its size, but MIN_SHARE if that is more; what a short one
    leaves goes to those after it. So a corpus smaller than the sample is read whole, and of too many inputs evenly
    spread ones are read. After an iteration, `text_bytes` were given, `cut` tells whether there were more, and
    `rejected` rows could not be read, the first for `first_reason`.
    """

    def __init__(self, inputs: Sequence[SourceInput], options: Options, sample_bytes: int, cache: Cache) -> None:
        self.options, self.sample_bytes, self.cache = options, sample_bytes, cache
        # Multiples of the golden ratio modulo 1 are evenly spread, wherever one stops.
        order = sorted(range(len(inputs)), key=lambda number: number * 0.618033988749895 % 1)
        self._inputs = [(inputs[number], examine(inputs[number], cache, options)) for number in order]
        self.rejected, self.first_reason = 0, ""
        self.text_bytes, self.cut = 0, False

    def __iter__(self) -> Iterator[str]:
        self.rejected, self.text_bytes, self.cut = 0, 0, False
        rest = sum(seen.bytes for _, seen in self._inputs)
        for found, seen in self._inputs:
            left = self.sample_bytes - self.text_bytes
            if not left:
                self.cut = True
                return
            yield from self._beginning(found, seen, min(left, max(MIN_SHARE, left * seen.bytes // max(1, rest))))
            rest -= seen.bytes

    def _beginning(self, found: SourceInput, seen: Examined, share: int) -> Iterator[str]:
        last = seen.bytes if seen.unit_bytes is None else len(seen.unit_bytes)
        for row in RowReader(found, 0, last, self.options, self.cache):
            if row.reason:
                self.rejected += 1
                self.first_reason = self.first_reason or f"{shown(found.location)} line {row.line}: {row.reason}"
                continue
            data = row.text.encode()
            if len(data) > share:
                self.cut = True
                data = data[:share]
            share -= len(data)
            self.text_bytes += len(data)
            yield data.decode(errors="ignore")
            if self.cut and not share:
                return
