"""Normalize documents, and filter them by length and repetition."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from data_prep.cleaning.repetition import repetitive
from data_prep.common.errors import UserError

REASONS = ("short", "long", "repetitive")


@dataclass(frozen=True)
class Cleaning:
    """Normalization and filters of documents.

    `normalize`: none, nfc or nfkc. Length limits are inclusive, in characters (code points) of the normalized text.

    Raises UserError for an invalid setting.
    """

    normalize: str = "none"
    min_characters: int = 0
    max_characters: int | None = None
    repetition: bool = False

    def __post_init__(self) -> None:
        if self.normalize not in ("none", "nfc", "nfkc"):
            raise UserError(f"Unknown normalization {self.normalize!r}; choose none, nfc or nfkc.")
        if self.min_characters < 0:
            raise UserError(f"The minimum number of characters is {self.min_characters}; give 0 or more.")
        if self.max_characters is not None and self.max_characters < max(1, self.min_characters):
            raise UserError(
                f"No document has at least {self.min_characters} and at most {self.max_characters} characters; "
                "raise the maximum or lower the minimum."
            )

    def clean(self, texts: Sequence[str]) -> tuple[list[str], list[str]]:
        """The normalized texts, and the reason for dropping each: the first of REASONS that applies, or ""."""
        normalized = [self.normalized(text) for text in texts]
        reasons = [self._length_reason(len(text)) for text in normalized]
        if self.repetition:
            rest = [index for index, reason in enumerate(reasons) if not reason]
            for index, repeats in zip(rest, repetitive([normalized[index] for index in rest]), strict=True):
                reasons[index] = "repetitive" if repeats else ""
        return normalized, reasons

    def normalized(self, text: str) -> str:
        """The text in the Unicode normal form of `normalize`."""
        if self.normalize == "none" or text.isascii():
            return text
        return unicodedata.normalize(cast(Literal["NFC", "NFKC"], self.normalize.upper()), text)

    def _length_reason(self, characters: int) -> str:
        if characters < self.min_characters:
            return "short"
        return "long" if self.max_characters is not None and characters > self.max_characters else ""
