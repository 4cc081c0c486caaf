"""The types that all sources share: an input, the options to read it, a document, and running counts."""

import operator
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from data_prep.common.errors import UserError
from data_prep.common.urls import file_name
from data_prep.storage import Cache

COMPRESSIONS = (".gz", ".zst")
_LINES = (".jsonl", ".txt", ".fasta", ".fa")
SUFFIXES = (*(kind + end for kind in _LINES for end in ("", *COMPRESSIONS)), ".parquet")
HEADER = "header"  # the id field of .fasta files: a record's first line, without its >
HUB = "hub:"
PAIR = "pair:"  # pair:SOURCE,TARGET, two text files whose lines belong together
MAX_DOCUMENT_BYTES = 64 << 20


@dataclass(frozen=True)
class Options:
    """Options to read documents. Raises UserError for an empty name or an impossible separator.

    text_field, id_field, wrong_field: keys. `a.b` is key b of the object under a, unless a key is named `a.b`.
    The wrong field has the text that the text field corrects; the target field has its translation.
    separator, for .txt: `blank` (blank lines separate documents), `line` (each line is a document), `file` (the file
    is one document), or any other text: a line equal to it ends a document.
    """

    text_field: str = "text"
    id_field: str | None = None
    separator: str = "blank"
    wrong_field: str | None = None
    target_field: str | None = None

    def __post_init__(self) -> None:
        if "" in (self.text_field, self.id_field, self.wrong_field, self.target_field):
            raise UserError("The name of the text, id, wrong or target field is empty; give the name of its key.")
        if self.wrong_field and self.target_field:
            raise UserError("A pair is a correction or a translation; leave out --wrong-field or --target-field.")
        if self.other_field == self.text_field:
            kind = "wrong" if self.wrong_field else "target"
            raise UserError(f"{self.text_field!r} is both the text field and the {kind} field; give different fields.")
        if not self.separator or "\n" in self.separator or "\r" in self.separator:
            raise UserError(f"The separator {self.separator!r} is not one line; give blank, line, file or one line.")

    @property
    def other_field(self) -> str | None:
        """The field with the second text of a pair."""
        return self.wrong_field or self.target_field


class SourceInput(NamedTuple):
    """One input. kind: jsonl, txt, fasta, parquet, hub or pair; location: a path, a URL, `hub:...` or `pair:...`."""

    source: str
    location: str
    kind: str


class SourceRow(NamedTuple):
    """A document and its first line or table row, counted from 1. If there is a `reason`, the row is unreadable.

    `other` is the second text of a pair: the wrong text that the document corrects, or its translation.
    `bytes` is the size of an unreadable row in the file; 0 if it has no text.
    """

    line: int
    text: str
    reason: str = ""
    id: str | int | None = None
    other: str | None = None
    bytes: int = 0

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, and the other text of a pair."""
        return (self.text,) if self.other is None else (self.text, self.other)


@dataclass
class InputRange:
    """The units [first, last) of an input and how to read them, with running totals of the rows read so far.

    Totals: stored bytes, bytes of text, lines (or table rows), and documents that were cut because they are longer than
    `max_bytes`.
    """

    source: SourceInput
    first: int
    last: int
    options: Options
    cache: Cache
    max_bytes: int = MAX_DOCUMENT_BYTES
    bytes_read: int = field(default=0, init=False)
    text_bytes: int = field(default=0, init=False)
    lines: int = field(default=0, init=False)
    cut_documents: int = field(default=0, init=False)
    _last_cut: int = field(default=0, init=False)

    def count_cut(self, line: int) -> None:
        """Count the document that begins at this line as cut. A second call for the same document does nothing."""
        self.cut_documents += line != self._last_cut
        self._last_cut = line

    def origin(self, line: int) -> tuple[str, int]:
        """The name of a line's file, if the input is a group of files, and the line in this file."""
        return "", line

    def stored(self, text_bytes: int) -> int:
        """The bytes of the file for so many bytes of its text, at the compression so far."""
        if not compression_of(self.source.location) or not self.text_bytes:
            return text_bytes
        return -(-text_bytes * self.bytes_read // self.text_bytes)


def kind_of(location: str) -> str | None:
    """jsonl, txt, fasta or parquet, by the name of the file; None for other names."""
    suffix = next((suffix for suffix in SUFFIXES if file_name(location).endswith(suffix)), None)
    ending = suffix.split(".")[1] if suffix else None
    return "fasta" if ending == "fa" else ending


def compression_of(location: str) -> str:
    """`.gz`, `.zst` or an empty string."""
    suffix = os.path.splitext(file_name(location))[1]
    return suffix if suffix in COMPRESSIONS else ""


def getter(field: str | None) -> Callable[[Any], Any]:
    """A function that gets a field of a parsed JSON object. It raises LookupError or TypeError for a missing field."""
    if field is None:
        return lambda value: None
    if "." not in field:
        return operator.itemgetter(field)

    def get(value: Any) -> Any:
        if field in value:
            return value[field]
        for part in field.split("."):
            value = value[part]
        return value

    return get


def too_long(what: str, max_bytes: int) -> str:
    """The reason for a row that is longer than the limit."""
    return f"the {what} is longer than {max_bytes} bytes: split it"
