"""A bounded sample of a corpus, spread over its inputs: what a tokenizer learns from."""

from collections.abc import Iterator, Sequence

from data_prep.sources import Found, LocalCache, Options, examine, open_rows

MIN_SHARE = 1_000_000


class Sample:
    """Documents from the beginnings of all inputs, as often as they are iterated over, the same each time.

    Each input gives a share of `sample_bytes` (UTF-8) by its size; what a short one leaves goes to those after it, so
    that a corpus smaller than the sample is read whole. Of more inputs than MIN_SHARE bytes each allow, evenly spread
    ones are read. After an iteration, `text_bytes` were given, `cut` tells whether there were more, and `rejected` rows
    could not be read, the first for `first_reason`.
    """

    def __init__(self, inputs: Sequence[Found], options: Options, sample_bytes: int, cache: LocalCache) -> None:
        self.options, self.sample_bytes, self.cache = options, sample_bytes, cache
        count = min(len(inputs), max(1, sample_bytes // MIN_SHARE))
        self.inputs = [inputs[number * len(inputs) // count] for number in range(count)]
        self._examined = [examine(one, cache, options) for one in self.inputs]
        self._some_unused = count < len(inputs)
        self.rejected, self.first_reason = 0, ""
        self.text_bytes, self.cut = 0, False

    def __iter__(self) -> Iterator[str]:
        self.rejected, self.text_bytes, self.cut = 0, 0, self._some_unused
        sizes = [one.bytes for one in self._examined]
        for number in range(len(self.inputs)):
            left = self.sample_bytes - self.text_bytes
            yield from self._beginning(number, left * sizes[number] // max(1, sum(sizes[number:])))

    def _beginning(self, number: int, share: int) -> Iterator[str]:
        found, seen = self.inputs[number], self._examined[number]
        last = seen.bytes if seen.unit_bytes is None else len(seen.unit_bytes)
        # A compressed file's share of the text is not known beforehand: what is left over goes to the next.
        for row in open_rows(found, 0, last, self.options, self.cache):
            if row.reason:
                self.rejected += 1
                self.first_reason = self.first_reason or f"{found.location} line {row.line}: {row.reason}"
                continue
            text = row.text.encode()[:share].decode(errors="ignore") if len(row.text) * 4 > share else row.text
            size = len(text.encode())
            self.cut = self.cut or len(text) < len(row.text)
            if not text and row.text:
                return
            share -= size
            self.text_bytes += size
            yield text
