"""What all sources share: an input, how it is read, a document, and fields by their (nested) names."""

import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from data_prep.errors import UserError
from data_prep.urls import file_name

COMPRESSIONS = (".gz", ".zst")
SUFFIXES = (
    *(kind + compression for kind in (".jsonl", ".txt") for compression in ("", *COMPRESSIONS)),
    ".parquet",
    ".arrow",
)
HUB = "hub:"


@dataclass(frozen=True)
class Options:
    """How documents are read. Raises UserError for empty names and a separator that no line can equal.

    text_field, id_field, wrong_field: a key; `a.b` is key b of the object under a, unless there is a key named `a.b`.
    The wrong field holds the text that the text field corrects.
    separator, of .txt: `blank` (a blank line ends a document), `line` (each line is a document), `file` (the whole
    file is one), or any other text: a line equal to it ends a document.
    """

    text_field: str = "text"
    id_field: str | None = None
    separator: str = "blank"
    wrong_field: str | None = None

    def __post_init__(self) -> None:
        if not self.text_field or self.id_field == "" or self.wrong_field == "":
            raise UserError("The name of the text, id or wrong field is empty; give the key that holds it.")
        if self.wrong_field == self.text_field:
            raise UserError(f"{self.text_field!r} is both the text field and the wrong field; give each its own.")
        if not self.separator or "\n" in self.separator or "\r" in self.separator:
            raise UserError(
                f"The separator {self.separator!r} is not the text of one line; give blank, line, file or such a text."
            )


class SourceInput(NamedTuple):
    """One input. kind: jsonl, txt, parquet, arrow or hub; location: absolute path, URL or `hub:...`."""

    source: str
    location: str
    kind: str


class SourceRow(NamedTuple):
    """A document and where it starts (line or table row, from 1); or, where `reason` is set, why there is none.

    `wrong` is the text that it corrects, if it has one.
    """

    line: int
    text: str
    reason: str = ""
    id: str | int | None = None
    wrong: str | None = None


@dataclass
class Counts:
    """Running totals of a range: bytes read of it, bytes of text in them, lines (or table rows) it owns."""

    bytes_read: int = 0
    text_bytes: int = 0
    lines: int = 0


def kind_of(location: str) -> str | None:
    """jsonl, txt, parquet or arrow by the file's name; None for any other."""
    name = file_name(location)
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)
    return suffix.split(".")[1] if suffix else None


def compression_of(location: str) -> str:
    """`.gz`, `.zst` or nothing."""
    suffix = os.path.splitext(file_name(location))[1]
    return suffix if suffix in COMPRESSIONS else ""


def getter(field: str | None) -> Callable[[Any], Any]:
    """A function from a parsed JSON object to its field; it raises LookupError or TypeError where there is none."""
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
    return f"the {what} is longer than {max_bytes} bytes"
