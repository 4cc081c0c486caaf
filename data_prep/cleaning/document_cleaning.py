"""Normalization of documents, and the choice and application of filters."""

import difflib
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal, NamedTuple, cast

from data_prep.cleaning.imported_filter import ImportedFilter
from data_prep.cleaning.text_filter import TextFilter, filter_forms, known_filters
from data_prep.common.errors import UserError


class FilterOption(NamedTuple):
    """The parts of NAME[@VERSION][=VALUE]. A name with a colon is the import path of a filter from outside."""

    name: str
    version: str
    value: str

    @classmethod
    def parse(cls, text: str) -> "FilterOption":
        name, _, value = text.partition("=")
        name, _, version = name.partition("@")
        return cls(name, version, value)

    def __str__(self) -> str:
        return self.name + f"@{self.version}" * bool(self.version) + f"={self.value}" * bool(self.value)

    @property
    def from_outside(self) -> bool:
        return ":" in self.name

    def make(self) -> TextFilter:
        """The filter. Raises UserError for an unusable value, and for another version."""
        try:
            kind = partial(ImportedFilter, self.name) if self.from_outside else known_filters()[self.name]
            made: TextFilter = kind(self.value)
        except ValueError as error:
            raise UserError(f"--filter {self}: {error}.") from None
        if self.version not in ("", made.version):
            raise UserError(f"--filter {self}: it is {made.version} now. Restore its version, or choose another --out.")
        return made


@dataclass(frozen=True)
class Cleaning:
    """Normalization and filters of documents. Raises UserError for an invalid setting.

    `normalize`: none, nfc or nfkc. `filters`: NAME[@VERSION][=VALUE] of each, in any order. Only `with_versions` and
    `clean` load filters from outside, since the settings may be of a plan that somebody else made.
    """

    normalize: str = "none"
    filters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.normalize not in ("none", "nfc", "nfkc"):
            raise UserError(f"Unknown normalization {self.normalize!r}; choose none, nfc or nfkc.")
        known, options = known_filters(), self._options
        if len({option.name for option in options}) < len(options):
            raise UserError(f"One filter is given twice: {', '.join(self.filters)}. Give each once.")
        for option in options:
            if option.name in known:
                option.make()
            elif not option.from_outside:
                likely = difflib.get_close_matches(option.name, known, n=1)
                advice = f"Did you mean {likely[0]}?" if likely else f"The filters are {', '.join(filter_forms())}."
                raise UserError(f"--filter {option}: there is no filter {option.name!r}. {advice}")

    @property
    def _options(self) -> list[FilterOption]:
        return [FilterOption.parse(text) for text in self.filters]

    @cached_property
    def _filters(self) -> list[TextFilter]:
        """The filters, in the order of their application."""
        return sorted((option.make() for option in self._options), key=lambda made: (made.order, made.name))

    def with_versions(self) -> "Cleaning":
        """The same settings with the present version of each filter from outside."""
        named = [str(option._replace(version=option.make().version)) for option in self._options]
        return replace(self, filters=tuple(named))

    def check_named(self, named: Iterable[str]) -> None:
        """Raise UserError unless the user has named each filter from outside, with its value, and no other filter."""
        allowed = {option._replace(version="") for option in map(FilterOption.parse, named)}
        planned = {option._replace(version="") for option in self._options}
        outside = {option for option in planned if option.from_outside}
        if unnamed := sorted(map(str, outside - allowed)):
            again = shlex.join(word for text in unnamed for word in ("--filter", text))
            raise UserError(f"The plan has filters from outside Maskwright. If you trust them, name them: {again}")
        if unplanned := sorted(map(str, allowed - planned)):
            raise UserError(f"The plan has no --filter {unplanned[0]}. Remove it, or plan with it and another --out.")

    def clean(self, texts: Sequence[str]) -> tuple[list[str], list[str]]:
        """The normalized texts, changed by some filters, and the reason for leaving out each: the first, or ""."""
        cleaned, reasons = [self.normalized(text) for text in texts], [""] * len(texts)
        for text_filter in self._filters:
            rest = [index for index, reason in enumerate(reasons) if not reason]
            given = [cleaned[index] for index in rest]
            why = text_filter.keep(given)
            for index, text, reason in zip(rest, given, why, strict=True):
                cleaned[index], reasons[index] = text, reason or ""
        return cleaned, reasons

    def normalized(self, text: str) -> str:
        """The text in the Unicode normal form of `normalize`."""
        if self.normalize == "none" or text.isascii():
            return text
        return unicodedata.normalize(cast(Literal["NFC", "NFKC"], self.normalize.upper()), text)
