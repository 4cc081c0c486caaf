"""A data set's own tokenizer, for turning ids back into text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from data_prep import tokenizer
from data_prep.errors import DamagedData
from data_prep.format import Dataset, tokenizer_digest


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of ids; `begins_word` bool [vocabulary] where the vocabulary alone tells word starts, else None."""

    _tokenizer: Tokenizer
    begins_word: np.ndarray | None

    def token(self, id: int) -> str | None:
        """The token as the vocabulary spells it; None for an id that it does not have."""
        return self._tokenizer.id_to_token(id)

    def text(self, ids: Sequence[int]) -> str:
        """The ids' text; unknown tokens appear as their name."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def open_vocabulary(dataset: Dataset) -> Vocabulary | None:
    """The vocabulary of a data set; None if it carries no tokenizer files.

    Raises DamagedData if the files are not those of the manifest.
    """
    info, folder = dataset.manifest.tokenizer, dataset.tokenizer_path
    if not info.files:
        return None
    try:
        digest, _ = tokenizer_digest(folder, info.files)
    except OSError as error:
        raise DamagedData(f"{folder} cannot be read ({error.strerror}); restore it.") from error
    if digest != info.sha256:
        raise DamagedData(f"{folder} is not the tokenizer that the data set was made with; restore it.")
    loaded = tokenizer.load(folder)
    if info.continuation_prefix is None:
        return Vocabulary(loaded, None)
    begins_word = np.ones(info.vocab_size, bool)
    for token, id in loaded.get_vocab(with_added_tokens=True).items():
        if id < info.vocab_size:
            begins_word[id] = not token.startswith(info.continuation_prefix)
    return Vocabulary(loaded, begins_word)
