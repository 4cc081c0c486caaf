"""Two text files whose lines belong together, `pair:SOURCE,TARGET`: a text and its translation in each line."""

import contextlib
import heapq
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, repeat
from operator import attrgetter

from data_prep.common.errors import UserError
from data_prep.common.urls import shown
from data_prep.sources.input_types import PAIR, InputRange, SourceInput, SourceRow, too_long
from data_prep.sources.text_lines import read_text_rows


def sides_of(pair: SourceInput) -> list[SourceInput]:
    """The two files of a pair."""
    return [SourceInput("", location, "txt") for location in pair.location.removeprefix(PAIR).split(",")]


def read_aligned(part: InputRange) -> Iterator[SourceRow]:
    """A row for each line that has text in one of the files: the source, with the same line of the target.

    Raises UserError at the end if the files have different numbers of lines, or one cannot be opened.
    """
    options = replace(part.options, separator="line")
    sides, last = list[InputRange](), dict[int, SourceRow]()  # the last row of each side
    with contextlib.ExitStack() as stack:
        rows: list[Iterator[tuple[int, SourceRow]]] = []
        for side, source in enumerate(sides_of(part.source)):
            path = stack.enter_context(part.cache.local(source.location))
            sides.append(InputRange(source, 0, path.stat().st_size, options, part.cache, part.max_bytes))
            rows.append(zip(repeat(side), _whole_lines(read_text_rows(path, sides[-1]), part.max_bytes), strict=False))
        merged = heapq.merge(*rows, key=lambda item: item[1].line)
        for line, found in groupby(merged, key=lambda item: item[1].line):
            last |= (rows_here := dict(found))
            row, same = map(rows_here.get, (0, 1), repeat(SourceRow(line, "")))
            part.bytes_read, part.text_bytes, part.lines = _totals(sides)
            reason = row.reason or (same.reason and f"target: {same.reason}")
            size = row.bytes + same.bytes + len(row.text.encode()) + len(same.text.encode()) if reason else 0
            yield row._replace(reason=reason, other=same.text, bytes=size)
    part.bytes_read, part.text_bytes, part.lines = _totals(sides)
    lines = [side.lines for side in sides]
    if lines[0] != lines[1]:
        names = [shown(side.source.location) for side in sides]
        why = "".join(f"{names[side]}: {row.reason}. " for side, row in last.items() if row.reason)
        raise UserError(
            f"{why}{names[0]} has {lines[0]} lines, and {names[1]} has {lines[1]}: line {min(lines) + 1} is only in "
            "one. Give two files whose lines belong together."
        )


def _whole_lines(rows: Iterator[SourceRow], max_bytes: int) -> Iterator[SourceRow]:
    """A row for each line. A line that was cut has a reason instead of a text, because a pair cannot be cut."""
    for _, pieces in groupby(rows, attrgetter("line")):
        row = next(pieces)
        sizes = [piece.bytes or len(piece.text.encode()) for piece in pieces]  # noqa: B031
        if sizes:
            size = sum(sizes, row.bytes or len(row.text.encode()))
            row = row._replace(text="", reason=too_long("line", max_bytes), bytes=size)
        yield row


def _totals(sides: list[InputRange]) -> tuple[int, int, int]:
    """Bytes read and bytes of text of both sides, and lines."""
    return sum(side.bytes_read for side in sides), sum(side.text_bytes for side in sides), sides[0].lines
