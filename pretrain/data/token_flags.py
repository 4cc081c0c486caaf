"""Per-token flags of a data set: word starts and repair targets, as bit arrays."""

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
    """Reader of the wanted flag bits of a block's tokens; None if no bits are wanted.

    Raises:
        UserError: if the data set lacks the information.
    """
    if wanted & TARGET:
        return _targets(dataset)
    if not wanted & WORD_START:
        return None
    begins_word = word_starts(dataset, "masking.strategy")
    return lambda tokens, block: begins_word(tokens, block) * np.uint8(WORD_START)


def check_targets(dataset: Dataset) -> None:
    """Raise UserError if the data set has no repair targets."""
    if not dataset.has_targets:
        raise UserError(
            f"{dataset.location} has no targets, which objective: repair predicts; prepare pairs of a wrong and a "
            "right text with `maskwright prep run --wrong-field`"
        )


def _targets(dataset: Dataset) -> Marks:
    check_targets(dataset)

    def stored(tokens: NDArray[np.unsignedinteger], block: int) -> NDArray[np.uint8]:
        found = dataset.targets(block)
        assert found is not None  # check_targets passed: every block has targets
        return found * np.uint8(TARGET)

    return stored


def word_order(dataset: Dataset, n: int, seed: int) -> Reorder:
    """Token order of a block whose n-grams of words are shuffled within documents.

    Raises:
        UserError: if the word starts are not known.
    """
    begins_word, key = word_starts(dataset, "data.shuffled_ngrams"), derive_key(seed, "word order")
    return lambda tokens, lengths, block: shuffled_ngrams(lengths, begins_word(tokens, block), n, key, block)


def word_starts(dataset: Dataset, setting: str) -> WordStarts:
    """Function that marks the tokens of a block that begin a word: (tokens [T], block) -> [T].

    Raises:
        UserError: if the word starts are not known; the message names `setting`.
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
        assert found is not None  # stored if the vocabulary does not mark word starts
        return found

    return stored
