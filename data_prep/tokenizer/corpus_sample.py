"""A bounded sample of a corpus, spread over its inputs, to train a tokenizer."""

from collections.abc import Iterator, Sequence

from data_prep.common.urls import shown
from data_prep.sources import Examined, Options, RowReader, SourceInput, examine
from data_prep.storage import Cache


class CorpusSample:
    """Documents from the beginnings of all inputs. Every iteration yields the same documents.

    Each input yields a share of `sample_bytes` (UTF-8) in proportion to its size, at least `min_share`. Later inputs
    use what a short input leaves. So a corpus smaller than the sample is read completely; if there are too many inputs,
    evenly spread ones are read. After an iteration, `text_bytes` is the size of the sample, `cut` whether the corpus
    has more, `rejected` the number of unreadable rows, and `first_reason` the reason for the first of them.
    """

    def __init__(
        self,
        inputs: Sequence[SourceInput],
        options: Options,
        sample_bytes: int,
        cache: Cache,
        min_share: int = 1_000_000,
    ) -> None:
        self.options, self.sample_bytes, self.cache, self.min_share = options, sample_bytes, cache, min_share
        # Any number of multiples of the golden ratio modulo 1 are evenly spread.
        order = sorted(range(len(inputs)), key=lambda number: number * 0.618033988749895 % 1)
        self._inputs = [(inputs[number], examine(inputs[number], cache, options)) for number in order]
        self.rejected, self.first_reason = 0, ""
        self.text_bytes, self.cut = 0, False

    def __iter__(self) -> Iterator[str]:
        self.rejected, self.text_bytes, self.cut = 0, 0, False
        rest = sum(examined.bytes for _, examined in self._inputs)
        for source, examined in self._inputs:
            left = self.sample_bytes - self.text_bytes
            if not left:
                self.cut = True
                return
            share = max(self.min_share, left * examined.bytes // max(1, rest))
            yield from self._beginning(source, examined, min(left, share))
            rest -= examined.bytes

    def _beginning(self, source: SourceInput, examined: Examined, share: int) -> Iterator[str]:
        last = examined.bytes if examined.unit_bytes is None else len(examined.unit_bytes)
        for row in RowReader(source, 0, last, self.options, self.cache):
            if row.reason:
                self.rejected += 1
                self.first_reason = self.first_reason or f"{shown(source.location)} line {row.line}: {row.reason}"
                continue
            for text in row.texts:
                data = text.encode()
                if len(data) > share:
                    self.cut = True
                    data = data[:share]
                share -= len(data)
                self.text_bytes += len(data)
                yield data.decode(errors="ignore")
                if self.cut and not share:
                    return
