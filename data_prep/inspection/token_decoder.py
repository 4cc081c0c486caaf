"""A data set's own tokenizer, for turning ids back into text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from data_prep.format import Dataset
from data_prep.tokenizer import hf_tokenizer


@dataclass(frozen=True)
class TokenDecoder:
    """Tokens of ids; `begins_word` bool [vocabulary] where the vocabulary alone tells word starts, else None."""

    _tokenizer: Tokenizer
    begins_word: np.ndarray | None

    def token(self, id: int) -> str | None:
        """The token as the vocabulary spells it; None for an id that it does not have."""
        return self._tokenizer.id_to_token(id)

    def text(self, ids: Sequence[int]) -> str:
        """The ids' text; unknown tokens appear as their name."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def open_vocabulary(dataset: Dataset) -> TokenDecoder | None:
    """The vocabulary of a data set; None if it carries no tokenizer files.

    Raises DamagedData if the files are not those of the manifest.
    """
    if not dataset.manifest.tokenizer.files:
        return None
    dataset.check_tokenizer()
    return TokenDecoder(hf_tokenizer.load(dataset.tokenizer_path), dataset.begins_word)
