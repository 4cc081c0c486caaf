"""What a data set tells of its tokens beside their ids, as the stream wants it."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import UserError
from data_prep.format import Dataset
from pretrain.data.window import Marks, Reorder
from pretrain.data.word_order import shuffled_ngrams
from pretrain.masking import WORD_START
from pretrain.masking.rows import TARGET
from pretrain.philox import derive_key

WordStarts = Callable[[NDArray[np.unsignedinteger], int], NDArray[np.bool_]]


def marks_of(dataset: Dataset, wanted: int) -> Marks | None:
    """The wanted bits of the marks of a block's tokens; None where none are wanted.

    Raises:
        UserError: if the data set does not tell.
    """
    if wanted & TARGET:
        return _targets(dataset)
    if not wanted & WORD_START:
        return None
    begins_word = word_starts(dataset, "masking.strategy")
    return lambda tokens, block: begins_word(tokens, block) * np.uint8(WORD_START)


def check_targets(dataset: Dataset) -> None:
    """Raise UserError if the data set does not tell what is to be repaired."""
    if not dataset.has_targets:
        raise UserError(
            f"{dataset.location} has no targets, which objective: repair predicts; prepare pairs of a wrong and a "
            "right text, with `maskwright prep run --wrong-field`"
        )


def _targets(dataset: Dataset) -> Marks:
    check_targets(dataset)

    def stored(tokens: NDArray[np.unsignedinteger], block: int) -> NDArray[np.uint8]:
        found = dataset.targets(block)
        assert found is not None  # a data set that has targets has them in every block
        return found * np.uint8(TARGET)

    return stored


def word_order(dataset: Dataset, n: int, seed: int) -> Reorder:
    """The order of a block's tokens when n-grams of words are shuffled within documents.

    Raises:
        UserError: if the data set does not tell where words begin.
    """
    begins_word, key = word_starts(dataset, "data.shuffled_ngrams"), derive_key(seed, "word order")
    return lambda tokens, lengths, block: shuffled_ngrams(lengths, begins_word(tokens, block), n, key, block)


def word_starts(dataset: Dataset, setting: str) -> WordStarts:
    """Whether each token of a block begins a word: (tokens [T], block) -> [T].

    Raises:
        UserError: if the data set does not tell, which `setting` needs.
    """
    of_ids = dataset.begins_word
    if of_ids is not None:
        return lambda tokens, block: of_ids[tokens]
    if dataset.manifest.tokenizer.continuation_prefix is not None:
        raise UserError(
            f"{dataset.location} has no tokenizer files, which tell where words begin; {setting} needs them"
        )

    def stored(tokens: NDArray[np.unsignedinteger], block: int) -> NDArray[np.bool_]:
        found = dataset.word_starts(block)
        assert found is not None  # a data set whose vocabulary does not tell has them
        return found

    return stored
