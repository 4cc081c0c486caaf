"""Masks in a prompt."""

from data_prep.common.errors import UserError

MASK = "[MASK]"  # for every tokenizer


def require_mask(text: str, token: str | None) -> None:
    """Raise UserError for a text without a mask. `token` is the mask token of the tokenizer."""
    if MASK not in text and (token or MASK) not in text:
        raise UserError(f"No {MASK} in {text!r}. Write {MASK} where a word is missing.")
