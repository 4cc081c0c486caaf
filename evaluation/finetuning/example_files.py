"""The examples of files, each with its place: tables of cells or JSON lines, columns of words, and JSON."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson  # refuses what json lets through or stumbles over: lone surrogates, deep nesting, endless integers

from data_prep.errors import UnusableInput
from data_prep.urls import file_name, shown
from evaluation.text_files import read_text

Item = TypeVar("Item")
_CONLLU_CELLS = 10
_FORM_AND_UPOS = [2, 4]
_CONLLU_ID = re.compile(r"[0-9]+([-.][0-9]+)?\t")  # of a word, of a range of words (3-4), of an empty node (5.1)


@dataclass(frozen=True)
class TableRow:
    """Chosen cells of a table's row; `place` is "FILE, line N"."""

    place: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class LabelledSentence:
    """Words and their labels; `place` is where it begins."""

    place: str
    words: list[str]
    labels: list[str]


def read_table(path: str, columns: Sequence[str]) -> list[TableRow]:
    """The named cells of each row of a .jsonl file, or else of tab-separated lines without quoting.

    Args:
        columns: names of the first line's, or of JSON's fields; or numbers from 1 on, where the first line is a row.

    Raises:
        UserError: if a column is missing, a line has more or fewer cells than the first, a line is not JSON, or there
            are no rows.
    """
    lines = _lines(read_text(path), path)
    if _is_jsonl(path):
        rows = [TableRow(place, _fields(place, line, columns)) for place, line in lines]
    else:
        (first, header), *below = lines
        names = header.split("\t")
        if all(name.isdecimal() for name in columns):
            numbers, below = [int(name) for name in columns], lines
        else:
            numbers = _numbers(first, names, columns)
        rows = [TableRow(place, _chosen(place, _split(place, line, len(names)), numbers)) for place, line in below]
    if not rows:
        raise UnusableInput(f"{shown(path)} has no rows under its header")
    return rows


def first_names(path: str) -> list[str]:
    """The cells of a table's first line, which may be its header, or the names of the first JSON line's fields."""
    (place, line), *_ = _lines(read_text(path), path)
    return list(_object(place, line)) if _is_jsonl(path) else line.split("\t")


def read_columns(path: str, columns: Sequence[str] = ()) -> list[LabelledSentence]:
    """Sentences of a file in CoNLL's form: a word a line, cells apart by spaces or tabs, a blank line after a sentence.

    Lines that begin with # are comments where the word is not the first cell; else # may be a word. Of CoNLL-U, cells
    are what is between tabs, and lines of ranges and of empty nodes are left out, whose words are no words of the text
    or stand below (https://universaldependencies.org/format.html).

    Args:
        columns: numbers of the word's cell and the label's, from 1 on; by default the first and the last, or of CoNLL-U
            those of forms and of universal parts of speech.

    Raises:
        UserError: if a line has too few cells, of CoNLL-U also too many, or no line has a word.
    """
    if columns and not (len(columns) == 2 and all(name.isdecimal() and int(name) for name in columns)):
        raise UnusableInput(f"--columns {','.join(columns)}: write the numbers of the word's column and of the label's")
    lines = read_text(path).split("\n")
    is_conllu = _is_conllu(lines)
    numbers = [int(name) for name in columns] or (_FORM_AND_UPOS if is_conllu else [])
    sentences: list[LabelledSentence] = []
    open_sentence = False
    for place, cells in _word_lines(path, lines, is_conllu, has_comments=bool(numbers) and numbers[0] > 1):
        if not cells:
            open_sentence = False
            continue
        if len(cells) < 2:
            raise UnusableInput(f"{place}: a word and its label are wanted, and there is {cells[0][:80]!r}")
        word, label = _chosen(place, cells, numbers or [1, len(cells)])
        if not open_sentence:
            sentences.append(LabelledSentence(place, [], []))
        open_sentence = True
        sentences[-1].words.append(word)
        sentences[-1].labels.append(label)
    if not sentences:
        raise UnusableInput(f"{shown(path)} has no words")
    return sentences


def read_json(path: str) -> Any:
    """Raises UserError, with the line, if the file is not JSON."""
    text = read_text(path)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UnusableInput(f"{shown(path)}, line {error.lineno} is not JSON. Questions are in SQuAD's form.") from None


def spread(items: list[Item], count: int | None) -> list[Item]:
    """`count` of the items, evenly spread over them; all of them if there are no more, or count is None."""
    if count is None or count >= len(items):
        return items
    return [items[number * len(items) // count] for number in range(count)]


def _is_jsonl(path: str) -> bool:
    return re.search(r"\.(jsonl|ndjson)(\.\w+)?$", file_name(path)) is not None


def _lines(text: str, path: str) -> list[tuple[str, str]]:
    numbered = enumerate(text.split("\n"), 1)
    return [(f"{shown(path)}, line {number}", line) for number, line in numbered if line.strip()]


def _word_lines(path: str, lines: list[str], is_conllu: bool, has_comments: bool) -> Iterator[tuple[str, list[str]]]:
    """Place and cells of each line with a word; no cells between sentences."""
    for number, line in enumerate(lines, 1):
        place = f"{shown(path)}, line {number}"
        cells = re.split("[ \t]+", line.strip(" \t"))  # other white space can be part of a word: "10\xa0000"
        if not line.strip() or cells[0] == "-DOCSTART-":
            yield place, []
        elif not (line.startswith("#") and (has_comments or is_conllu)):
            if is_conllu:
                cells = _split(place, line, _CONLLU_CELLS)
            if cells[0].isdecimal() or not is_conllu:
                yield place, cells


def _is_conllu(lines: list[str]) -> bool:
    words = [line for line in lines if line.strip() and not line.startswith("#")]
    return bool(words) and words[0].count("\t") == _CONLLU_CELLS - 1 and all(map(_CONLLU_ID.match, words))


def _numbers(place: str, names: list[str], columns: Sequence[str]) -> list[int]:
    if absent := [name for name in columns if name not in names]:
        there = textwrap.shorten(", ".join(map(repr, names)), 120, placeholder=" ...")
        raise UnusableInput(f"{place} has no column {absent[0]!r}, but {there}. Name columns with --columns.")
    return [names.index(name) + 1 for name in columns]


def _split(place: str, line: str, width: int) -> list[str]:
    """The cells of a line, which are `width`: with another tab or one less, cells would be taken for others."""
    cells = line.split("\t")
    if len(cells) != width:
        raise UnusableInput(
            f"{place}: there are {len(cells)} cells, and {width} in the first line; set tabs between cells alone"
        )
    return cells


def _chosen(place: str, cells: Sequence[str], numbers: Sequence[int]) -> tuple[str, ...]:
    for number in numbers:
        if not 1 <= number <= len(cells):
            raise UnusableInput(f"{place}: there is no column {number}, but {len(cells)}")
    return tuple(cells[number - 1] for number in numbers)


def _object(place: str, line: str) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise UnusableInput(f"{place} is not JSON. Write a JSON object in each line.") from None
    if not isinstance(value, dict):
        raise UnusableInput(f"{place}: a JSON object is wanted")
    return value


def _fields(place: str, line: str, columns: Sequence[str]) -> tuple[str, ...]:
    value = _object(place, line)
    for name in columns:
        if not isinstance(value.get(name), str | int):
            raise UnusableInput(f"{place}: the field {name!r} is missing, or neither a text nor an integer of 64 bits")
    return tuple(str(value[name]) for name in columns)
