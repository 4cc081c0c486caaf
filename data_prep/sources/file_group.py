"""Many small files that one task reads, one after the other."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import xxhash

from data_prep.common.reading import PathText
from data_prep.sources.input_types import InputRange, Options, SourceInput, SourceRow
from data_prep.sources.open_rows import Examined, RowReader, examine_unchanged
from data_prep.storage import Cache


@dataclass(frozen=True)
class GroupedFile:
    """A file of a group. `name` is for display; `examine` gives size and digest."""

    name: str
    location: PathText
    bytes: int
    digest: str


def examine_group(files: Sequence[GroupedFile]) -> Examined:
    """The size and digest of a group, which is one unit."""
    size = sum(file.bytes for file in files)
    content = "\n".join(f"{file.bytes} {file.digest}" for file in files)
    return Examined(size, xxhash.xxh3_128_hexdigest(content.encode()), (size,))


class GroupReader(InputRange):
    """The rows of all files of a group, in order. Lines and totals count on from file to file.

    Iteration raises UserError at a file that has changed, and otherwise as RowReader.
    """

    def __init__(self, group: SourceInput, files: Sequence[GroupedFile], options: Options, cache: Cache) -> None:
        super().__init__(group, 0, 1, options, cache)
        self._files = files
        self._starts: list[int] = []  # lines before each file

    def __iter__(self) -> Iterator[SourceRow]:
        self.bytes_read = self.text_bytes = self.lines = self.cut_documents = 0
        self._starts = []
        for file in self._files:
            source = self.source._replace(location=file.location)
            seen = examine_unchanged(source, file.digest, self.cache, self.options)
            units = seen.bytes if seen.unit_bytes is None else len(seen.unit_bytes)
            reader = RowReader(source, 0, units, self.options, self.cache, self.max_bytes)
            before = self.bytes_read, self.text_bytes, self.lines, self.cut_documents
            self._starts.append(self.lines)
            for row in reader:
                self._count(before, reader)
                yield row._replace(line=before[2] + row.line)
            self._count(before, reader)

    def _count(self, before: tuple[int, int, int, int], reader: RowReader) -> None:
        self.bytes_read, self.text_bytes = before[0] + reader.bytes_read, before[1] + reader.text_bytes
        self.lines, self.cut_documents = before[2] + reader.lines, before[3] + reader.cut_documents

    def origin(self, line: int) -> tuple[str, int]:
        number = bisect_right(self._starts, line - 1) - 1
        return self._files[number].name, line - self._starts[number]
