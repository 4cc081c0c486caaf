"""Filters that look at one document alone."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from data_prep.cleaning.repetition import repetitive
from data_prep.errors import UserError

REASONS = ("short", "long", "repetitive")


@dataclass(frozen=True)
class Cleaning:
    """`normalize`: none, nfc or nfkc. Lengths are in characters (code points) after that, both bounds included.

    Raises UserError for a setting that keeps nothing or is unknown.
    """

    normalize: str = "none"
    min_characters: int = 0
    max_characters: int | None = None
    repetition: bool = False

    def __post_init__(self) -> None:
        if self.normalize not in ("none", "nfc", "nfkc"):
            raise UserError(f"Unknown normalisation {self.normalize!r}; choose none, nfc or nfkc.")
        if self.min_characters < 0:
            raise UserError(f"The least number of characters is {self.min_characters}; give 0 or more.")
        if self.max_characters is not None and self.max_characters < max(1, self.min_characters):
            raise UserError(
                f"No document has at least {self.min_characters} and at most {self.max_characters} characters; "
                "raise the greatest number or lower the least."
            )


def clean_all(texts: Sequence[str], settings: Cleaning) -> tuple[list[str], list[str]]:
    """The normalised texts; and why each is left out: the first of REASONS that applies, or "" if it is kept."""
    normalized = [normalize(text, settings.normalize) for text in texts]
    reasons = [_length_reason(len(text), settings) for text in normalized]
    if settings.repetition:
        kept = [index for index, reason in enumerate(reasons) if not reason]
        for index, repeats in zip(kept, repetitive([normalized[index] for index in kept]), strict=True):
            reasons[index] = "repetitive" if repeats else ""
    return normalized, reasons


def normalize(text: str, form: str) -> str:
    """The text in a Unicode normal form: none, nfc or nfkc."""
    if form == "none" or text.isascii():
        return text
    return unicodedata.normalize(cast(Literal["NFC", "NFKC"], form.upper()), text)


def _length_reason(characters: int, settings: Cleaning) -> str:
    if characters < settings.min_characters:
        return "short"
    return "long" if settings.max_characters is not None and characters > settings.max_characters else ""
