"""Texts to ids and word starts (docs/data-format.md says what a word is)."""

from data_prep.encoding.base import Encoder
from data_prep.encoding.choose import Encoders

__all__ = ["Encoder", "Encoders"]
