"""Read example files: tables, JSON lines, data sets of the Hub, CoNLL columns. Each example keeps its file and line."""

import hashlib
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from data_prep.common.errors import UnusableInput
from data_prep.common.urls import file_name, shown
from data_prep.sources import find_inputs, hub_records
from data_prep.storage import is_hub_name, load_text, read_json_lines, read_lines

_CONLLU_CELLS = 10
_FORM_AND_UPOS = [2, 4]
_HEADERS = {"label", "labels", "tag", "tags", "ner", "ner_tag", "ner_tags"}
_WANTED = "--task tokens reads a word and its label in each line, without a header. For labelled texts, use --task"


@dataclass(frozen=True)
class TableRow:
    """Selected cells of a row. place: "FILE, line N"."""

    place: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class LabelledSentence:
    """Words and their labels. place: "FILE, line N" of the first word."""

    place: str
    words: list[str]
    labels: list[str]


def pinned(path: str) -> str:
    """The path; of a data set of the Hub, its location with the current commit."""
    return find_inputs([path])[0].location if is_hub_name(path) else path


def content_digest(path: str) -> str:
    """SHA-256 of the text of a file, or of the rows of a data set of the Hub."""
    if not is_hub_name(path):
        return hashlib.sha256(load_text(path).encode()).hexdigest()
    digest = hashlib.sha256()
    for _, record in hub_records(path):
        digest.update(f"{record}\n".encode())
    return digest.hexdigest()


def read_table(path: str, columns: Sequence[str]) -> list[TableRow]:
    """Read the selected cells of a .jsonl file or data set of the Hub, or of a tab-separated file without quoting.

    Args:
        columns: names in the header or JSON fields; or numbers from 1, for a file without a header.

    Raises UserError if a column is missing, a line has more or fewer cells than the first, a line is not JSON, or there
    are no rows.
    """
    if (records := _records(path, columns)) is not None:
        table = [TableRow(place, _fields(place, values, columns)) for place, values in records]
        if not table:
            raise UnusableInput(f"{shown(path)} has no rows")
        return table
    lines = list(read_lines(path))
    place, header = lines[0]
    names = header.split("\t")
    if all(name.isdecimal() for name in columns):
        names = [str(number) for number in range(1, len(names) + 1)]
    else:
        lines = lines[1:]
    if absent := [name for name in columns if name not in names]:
        there = textwrap.shorten(", ".join(map(repr, names)), 120, placeholder=" ...")
        raise UnusableInput(f"{place} has no column {absent[0]!r}, but {there}. Name columns with --columns.")
    if not lines:
        raise UnusableInput(f"{shown(path)} has no rows under its header")
    chosen = [names.index(name) for name in columns]
    rows = [(place, _split(place, line, len(names))) for place, line in lines]
    return [TableRow(place, tuple(cells[column] for column in chosen)) for place, cells in rows]


def first_names(path: str) -> list[str]:
    """Cells of the first line of a table, header or not, or field names of the first record."""
    if (records := _records(path, ())) is not None:
        return list(next(records, ("", {}))[1])
    return next(read_lines(path))[1].split("\t")


def read_columns(path: str, columns: Sequence[str] = ()) -> list[LabelledSentence]:
    """Read sentences in CoNLL format: a word per line, cells between spaces or tabs, a blank line per sentence.

    A line that begins with # is a comment, unless the word is the first cell. In CoNLL-U (.conllu), tabs separate
    cells. Lines of ranges (3-4) and empty nodes (5.1) are skipped: they repeat words or are not in the text
    (https://universaldependencies.org/format.html).

    Args:
        columns: numbers of the word and label cells, from 1. Default: first and last; in CoNLL-U, FORM and UPOS.

    Raises UserError if a line has too few cells (in CoNLL-U also too many), no line has a word, or the file is a table
    with a header or with texts of several words, JSON or CSV.
    """
    if columns and not (len(columns) == 2 and all(name.isdecimal() and int(name) for name in columns)):
        raise UnusableInput(f"--columns {','.join(columns)}: write the numbers of the word's column and of the label's")
    if is_hub_name(path) or _is_jsonl(path) or re.search(r"\.csv(\.\w+)?$", file_name(path)):
        raise UnusableInput(f"{shown(path)}: {_WANTED} classification.")
    is_conllu = re.search(r"\.conllu(\.\w+)?$", file_name(path)) is not None
    numbers = [int(name) for name in columns] or (_FORM_AND_UPOS if is_conllu else [])
    has_comments = is_conllu or (bool(numbers) and numbers[0] > 1)
    sentences: list[LabelledSentence] = []
    open_sentence = False
    for number, line in enumerate(load_text(path).split("\n"), 1):
        place = f"{shown(path)}, line {number}"
        cells = re.split("[ \t]+", line.strip(" \t"))  # other white space can be part of a word: "10\xa0000"
        if not line.strip() or cells[0] == "-DOCSTART-":
            open_sentence = False
            continue
        if line.startswith("#") and has_comments:
            continue
        if is_conllu:
            cells = _split(place, line, _CONLLU_CELLS)
            if not cells[0].isdecimal():
                continue
        if (least := max(numbers, default=2)) > len(cells):
            raise UnusableInput(
                f"{place} has {len(cells)} cells, and the words or labels are in column {least}: {line[:80]!r}. Add "
                "the cell, or name the columns with --columns."
            )
        word, label = (cells[number - 1] for number in numbers or [1, len(cells)])
        if not sentences and label.lower() in _HEADERS:
            raise UnusableInput(f"{place} is a header ({line[:50]!r}). {_WANTED} classification.")
        if "\t" in line and " " in line.split("\t")[0].strip() and not numbers:
            raise UnusableInput(f"{place} has a text of several words ({line[:50]!r}). {_WANTED} classification.")
        if not open_sentence:
            sentences.append(LabelledSentence(place, [], []))
        open_sentence = True
        sentences[-1].words.append(word)
        sentences[-1].labels.append(label)
    if not sentences:
        raise UnusableInput(f"{shown(path)} has no words. Write a word and its label in each line.")
    return sentences


def _records(path: str, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]] | None:
    """The records of a .jsonl file or a data set of the Hub with at least these columns; None for another file."""
    if is_hub_name(path):
        return hub_records(path, columns)
    return read_json_lines(path) if _is_jsonl(path) else None


def _is_jsonl(path: str) -> bool:
    return re.search(r"\.(jsonl|ndjson)(\.\w+)?$", file_name(path)) is not None


def _split(place: str, line: str, width: int) -> list[str]:
    """Split a line into exactly `width` cells. A missing or extra tab would shift the columns."""
    cells = line.split("\t")
    if len(cells) != width:
        raise UnusableInput(
            f"{place}: there are {len(cells)} cells, and {width} in the first line; set tabs between cells alone"
        )
    return cells


def _fields(place: str, value: dict[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    for name in columns:
        if not isinstance(value.get(name), str | int | float):
            raise UnusableInput(f"{place}: the field {name!r} is missing, or neither a text nor a number of 64 bits")
    return tuple(str(value[name]) for name in columns)
