"""Per-token flags of a data set: word starts and repair targets. Checks of what a data set must mark."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from pretrain.data.packing import SPECIALS_PER_PIECE
from pretrain.data.window import ReadFlags
from pretrain.masking import TokenFlag


def flag_reader(dataset: Dataset, wanted: int) -> ReadFlags | None:
    """Reader of the wanted flag bits of a block's tokens; None if no bits are wanted.

    Raises UserError if the data set lacks the information.
    """
    readers: list[ReadFlags] = []
    if wanted & TokenFlag.TARGET:
        check_targets(dataset)
        readers.append(lambda tokens, block: np.asarray(dataset.targets(block)) * np.uint8(TokenFlag.TARGET))
    if wanted & TokenFlag.WORD_START:
        begins_word = _word_starts(dataset)
        readers.append(lambda tokens, block: begins_word(tokens, block) * np.uint8(TokenFlag.WORD_START))
    if len(readers) == 2:
        return lambda tokens, block: readers[0](tokens, block) | readers[1](tokens, block)
    return readers[0] if readers else None


def check_targets(dataset: Dataset) -> None:
    """Raise UserError if the data set has no repair targets."""
    if not dataset.has_targets:
        raise UserError(
            f"{dataset.location} has no targets, which objective repair and masking.selection.unmarked need; prepare "
            "pairs of a wrong and a right text with `maskwright prep run --wrong-field`"
        )


def check_translation_pairs(dataset: Dataset, seq_len: int) -> None:
    """Raise UserError if the documents are not translation pairs, or rows of `seq_len` slots would cut some."""
    if dataset.manifest.tokenizer.special_ids["sep"] not in dataset.tokens(0):
        raise UserError(
            f"{dataset.location} holds no pairs, which objective: prefix needs; prepare some with `maskwright prep run "
            "--input pair:SOURCE,TARGET`"
        )
    longest = max(int(dataset.document_lengths(block).max()) for block in range(dataset.n_blocks))
    if longest + SPECIALS_PER_PIECE > seq_len:
        raise UserError(
            f"{dataset.location} has a pair of {longest} tokens, which rows of {seq_len} would cut; set data.seq_len "
            f"to {longest + SPECIALS_PER_PIECE}, or prepare again with --max-pair-tokens {seq_len - SPECIALS_PER_PIECE}"
        )


def _word_starts(dataset: Dataset) -> Callable[[NDArray[np.unsignedinteger], int], NDArray[np.bool_]]:
    """Function of (tokens [T], block) that says which tokens begin a word: [T]."""
    of_ids = dataset.begins_word
    if of_ids is not None:
        return lambda tokens, block: of_ids[tokens]
    if dataset.manifest.tokenizer.continuation_prefix is not None:
        raise UserError(
            f"{dataset.location} has no tokenizer files, which show where words begin; masking whole words needs them"
        )
    return lambda tokens, block: np.asarray(dataset.word_starts(block))  # stored if the ids do not say it
