"""Rows for masking tests, written as strings, and their masked tokens."""

from dataclasses import replace
from typing import Any

import numpy as np

from pretrain.masking import IGNORED, Masked, MaskedTokens, Rows, Vocabulary
from tests.support.masks import rows_of, token_masking

STRATEGIES: dict[str, dict[str, Any]] = {
    "token": {},
    "whole_word": {"strategy": "whole_word"},
    "span": {"strategy": "span"},
    "mix": {"strategy": {"token": 1, "whole_word": 1, "span": 2}},
}

# Of the tokens added to the base vocabulary, 48 is ordinary and 49 special.
VOCABULARY = Vocabulary(size=50, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset({0, 1, 2, 3, 4, 30, 49}))
_SPECIALS = {"[": 2, "]": 3, ".": 0, "?": 1, "!": 4, "#": 49, "*": 30}


def masking(strategy: str, rate: float = 0.15, **options: Any) -> MaskedTokens:
    """Masking by one of STRATEGIES, with options of `token_masking`."""
    return token_masking(VOCABULARY, rate, **STRATEGIES[strategy], **options)


def drawn(picture: str, n_rows: int = 1, id: int | None = None) -> Rows:
    """The same row again and again: `[AbbC]` is a document of two words, the first of three tokens.

    `.` is padding, `?` [UNK], `!` [MASK]; `#` and `*` are other special tokens. Ordinary ids are random if none is
    given.
    """
    signs = np.array(list(picture))
    tokens = np.random.default_rng(0).choice(VOCABULARY.ordinary_ids, (n_rows, len(signs)))
    if id is not None:
        tokens[:] = id
    for sign, special in _SPECIALS.items():
        tokens[:, signs == sign] = special
    return rows_of(tokens, np.tile([sign.isupper() for sign in picture], (n_rows, 1)))


def words(*lengths: int) -> str:
    """Words of so many tokens, as `drawn` wants them."""
    return "".join("A" + "a" * (length - 1) for length in lengths)


def some(rows: Rows, which: slice | np.ndarray) -> Rows:
    """Some of the rows."""
    return Rows(rows.tokens[which], rows.row_ids[which], rows.flags[which])


def elsewhere(rows: Rows, **place: int) -> Rows:
    """The same rows in another epoch or window, or from another number on."""
    places = rows.row_ids.copy()
    for number, name in enumerate(("epoch", "window", "row")):
        places[:, number] += place.get(name, 0)
    return replace(rows, row_ids=places)


def selected(found: Masked, n_rows: int) -> np.ndarray:
    """Places of predicted tokens: bool [R, S]."""
    hit = np.zeros(len(found.tokens), dtype=bool)
    hit[found.positions[found.labels != IGNORED]] = True
    return hit.reshape(n_rows, -1)
