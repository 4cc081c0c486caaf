"""Documents of a range of an input's units."""

from collections.abc import Iterator

from data_prep.cache import Cache
from data_prep.errors import UserError
from data_prep.sources.input_types import Counts, Options, SourceInput, SourceRow
from data_prep.sources.text_lines import read_lines
from data_prep.urls import is_url, shown

MAX_DOCUMENT_BYTES = 64 << 20


class RowReader(Counts):
    """The rows of units [first, last) of an input, in order; while iterating, its counts are running totals.

    Units are bytes where `examine` gives none. A document of more than `max_bytes` of UTF-8 is a row with a reason.

    `bytes_read` ends at the range's bytes as `examine` tells them (of the Hub: the bytes of its columns), `lines` at
    the number of lines or table rows that the range owns: the line in the file is that of the row plus the lines of
    earlier ranges. Raises UserError for an input that cannot be opened.
    """

    def __init__(
        self,
        found: SourceInput,
        first: int,
        last: int,
        options: Options,
        cache: Cache,
        max_bytes: int = MAX_DOCUMENT_BYTES,
    ) -> None:
        super().__init__()
        self._found, self._first, self._last = found, first, last
        self._options, self._cache, self._max_bytes = options, cache, max_bytes

    def __iter__(self) -> Iterator[SourceRow]:
        self.bytes_read = self.text_bytes = self.lines = 0
        location, kind = self._found.location, self._found.kind
        rest = (self._first, self._last, self._options, self._max_bytes, self)
        if kind == "hub":
            from data_prep.sources.hub import read_hub

            yield from read_hub(location, *rest)
            return
        with self._cache.local(location) as path:
            try:
                if kind in ("jsonl", "txt"):
                    yield from read_lines(path, location, kind, *rest)
                elif kind == "parquet":
                    from data_prep.sources.arrow_tables import read_parquet

                    yield from read_parquet(path, location, *rest)
                else:
                    from data_prep.sources.arrow_tables import read_arrow

                    yield from read_arrow(path, location, is_url(location), *rest)
            except OSError as error:
                raise UserError(f"{shown(location)} cannot be read: {error.strerror or error}.") from error
