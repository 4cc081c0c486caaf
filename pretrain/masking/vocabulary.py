"""Vocabulary for masking: the special ids, and the ordinary ids for random replacements."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import UserError
from data_prep.format import TokenizerInfo


@dataclass(frozen=True)
class Vocabulary:
    """size counts every id, added tokens included; special_ids are never selected and never drawn.

    tokenizer_sha256: digest of the tokenizer, as in a data set's manifest.
    """

    size: int
    pad: int
    cls: int
    sep: int
    mask: int
    special_ids: frozenset[int]
    tokenizer_sha256: str = ""

    @classmethod
    def of(cls, tokenizer: TokenizerInfo) -> "Vocabulary":
        """The vocabulary of a data set.

        Raises:
            UserError: if a special token for masking or packing is missing, or there are too few ordinary tokens.
        """
        named = {name: tokenizer.special_ids.get(name, -1) for name in ("pad", "cls", "sep", "mask")}
        if missing := [name for name, id in named.items() if id < 0]:
            raise UserError(
                f"the data set's tokenizer has no {' and no '.join(missing)} token; prepare it with one that has"
            )
        specials = frozenset(tokenizer.all_special_ids)
        vocabulary = cls(size=tokenizer.vocab_size, special_ids=specials, tokenizer_sha256=tokenizer.sha256, **named)
        if len(vocabulary.ordinary_ids) < 2:
            raise UserError(
                "the data set's vocabulary has fewer than two ordinary tokens; train a tokenizer on more text"
            )
        return vocabulary

    @cached_property
    def is_ordinary(self) -> NDArray[np.bool_]:
        """[size] True if an id may be selected for prediction or drawn as a replacement."""
        table = np.ones(self.size, dtype=np.bool_)
        table[[*self.special_ids, self.pad, self.cls, self.sep, self.mask]] = False
        return table

    @cached_property
    def ordinary_ids(self) -> NDArray[np.int64]:
        """The ordinary ids in increasing order."""
        return np.flatnonzero(self.is_ordinary)

    @cached_property
    def rank(self) -> NDArray[np.int64]:
        """[size] the index of each ordinary id in `ordinary_ids`."""
        return np.cumsum(self.is_ordinary) - 1
