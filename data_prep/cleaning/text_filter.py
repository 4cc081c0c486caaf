"""Normalization of documents, and the filters that leave some of them out."""

import difflib
import importlib
import pkgutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, cast

from data_prep.common.errors import UserError


class TextFilter:
    """A rule that leaves documents out, chosen by `--filter NAME` or `--filter NAME=VALUE`.

    A subclass in a file of data_prep/cleaning/filters/ is all that a new filter needs: the option, its help, the check
    of its value, the plan of a preparation and the counts by reason follow from it.

    Attributes:
        name: of the filter, in options and plans.
        value: describes the value, as MIN-MAX; empty for a filter without a value.
        reasons: why it leaves documents out, as the counts name them.
        order: filters with lower numbers come first. A document counts under the first reason.
    """

    name: ClassVar[str]
    value: ClassVar[str] = ""
    reasons: ClassVar[tuple[str, ...]]
    order: ClassVar[int]

    def __init__(self, value: str) -> None:
        """Raises ValueError for an unusable value, which says what to give."""
        if value:
            raise ValueError("it takes no value; leave it out")

    def reasons_for(self, texts: Sequence[str]) -> Sequence[str]:
        """The reason for leaving out each of the normalized texts, or "" for a text that stays."""
        raise NotImplementedError


def known_filters() -> dict[str, type[TextFilter]]:
    """All filters by name, in the order of their application. Raises ValueError if two have one name."""
    folder = importlib.import_module("data_prep.cleaning.filters")
    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    kinds = sorted(TextFilter.__subclasses__(), key=lambda kind: (kind.order, kind.name))
    known = {kind.name: kind for kind in kinds}
    if len(known) < len(kinds):
        raise ValueError(f"two filters have one name: {[kind.name for kind in kinds]}")
    return known


def filter_forms() -> list[str]:
    """How each filter is written: NAME or NAME=VALUE."""
    return [f"{name}={kind.value}" if kind.value else name for name, kind in known_filters().items()]


@dataclass(frozen=True)
class Cleaning:
    """Normalization and filters of documents. Raises UserError for an invalid setting.

    `normalize`: none, nfc or nfkc. `filters`: NAME or NAME=VALUE of each, in any order.
    """

    normalize: str = "none"
    filters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.normalize not in ("none", "nfc", "nfkc"):
            raise UserError(f"Unknown normalization {self.normalize!r}; choose none, nfc or nfkc.")
        _ = self._filters

    @cached_property
    def _filters(self) -> list[TextFilter]:
        """The filters, in the order of their application."""
        values = {text.partition("=")[0]: text for text in self.filters}
        if len(values) < len(self.filters):
            raise UserError(f"One filter is given twice: {', '.join(self.filters)}. Give each once.")
        known = known_filters()
        if unknown := next((name for name in values if name not in known), None):
            likely = difflib.get_close_matches(unknown, known, n=1)
            advice = f"Did you mean {likely[0]}?" if likely else f"The filters are {', '.join(filter_forms())}."
            raise UserError(f"--filter {values[unknown]}: there is no filter {unknown!r}. {advice}")
        return [_made(kind, values[name]) for name, kind in known.items() if name in values]

    def clean(self, texts: Sequence[str]) -> tuple[list[str], list[str]]:
        """The normalized texts, and the reason for leaving out each: the first that applies, or ""."""
        normalized = [self.normalized(text) for text in texts]
        reasons = [""] * len(texts)
        for text_filter in self._filters:
            rest = [index for index, reason in enumerate(reasons) if not reason]
            for index, reason in zip(rest, text_filter.reasons_for([normalized[i] for i in rest]), strict=True):
                reasons[index] = reason
        return normalized, reasons

    def normalized(self, text: str) -> str:
        """The text in the Unicode normal form of `normalize`."""
        if self.normalize == "none" or text.isascii():
            return text
        return unicodedata.normalize(cast(Literal["NFC", "NFKC"], self.normalize.upper()), text)


def _made(kind: type[TextFilter], text: str) -> TextFilter:
    try:
        return kind(text.partition("=")[2])
    except ValueError as error:
        raise UserError(f"--filter {text}: {error}.") from None
