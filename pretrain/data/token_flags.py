"""Per-token flags of a data set, word starts and repair targets, and the word-order ablation, which needs word starts.

The ablation shuffles the n-grams of words within each document, as Sinha et al., "Masked Language Modeling and the
Distributional Hypothesis: Order Word Matters Pre-training for Little", EMNLP 2021 (arXiv:2104.06644). Differences:

- Their n-grams stay within the sentence, ours within the document, because shards do not store sentences. To repeat the
  sentence setting, prepare the corpus with one sentence per document.
- They shuffle the text before tokenization; we shuffle the tokens. With byte-level BPE, the first word of a document
  keeps the token it has without a leading space. The tokens of a word stay together, which reveals some order:
  Ravishankar et al., "Word Order Does Matter (And Shuffled Language Models Know It)", ACL 2022 (arXiv:2203.10995).
- Punctuation marks are separate words if the tokenizer splits them off, as BERT's does.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from pretrain.data.packing import SPECIALS_PER_PIECE
from pretrain.data.window import ReadFlags, Reorder
from pretrain.masking import TokenFlag
from pretrain.philox import Key, derive_key, philox


def shuffled_ngrams(
    document_lengths: NDArray[np.uint32], begins_word: NDArray[np.bool_], n: int, key: Key, block: int
) -> NDArray[np.int64]:
    """Source places of a block's tokens after a uniform permutation of the n-grams of words within each document.

    A word runs from a word start to the next one, or to the document's end; a document's first token begins a word.
    From the document's start, each n consecutive words form an n-gram; the last may be shorter. Draws are keyed by
    (key, block, number of the n-gram in the block), so the order is the same in every epoch. Two n-grams of a document
    have the same draw, and keep their order, with a probability of 2**-32.

    Args:
        document_lengths: [D] tokens of each document, T in all; may be 0.
        begins_word: [T] whether a token begins a word.
        n: words of an n-gram, at least 1.

    Returns:
        [T] the source place of the token at each place of the block.
    """
    lengths = document_lengths[document_lengths > 0].astype(np.int64)
    start, document = _ngrams(lengths, begins_word, n)
    words = philox(key, np.arange(-(-len(start) // 4)), block & 0xFFFFFFFF, block >> 32, 0)
    draws = np.stack(words, axis=-1).reshape(-1)[: len(start)]  # four uniform 32-bit numbers from each counter
    order = np.argsort((document << np.uint64(32)) | draws, kind="stable")
    length = np.diff(start, append=len(begins_word))[order]
    # Source minus destination of an n-gram's first token: the same for all of its tokens.
    offset = start[order] - (np.cumsum(length) - length)
    return np.arange(len(begins_word)) + np.repeat(offset, length)


def _ngrams(
    lengths: NDArray[np.int64], begins_word: NDArray[np.bool_], n: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """First token of each n-gram int64 [G], and its document's number uint64 [G], in block order."""
    document_start = np.cumsum(lengths) - lengths
    begins = begins_word.copy()
    begins[document_start] = True
    word_start = np.flatnonzero(begins)
    first_word = np.searchsorted(word_start, document_start)
    ngrams = -(-np.diff(first_word, append=len(word_start)) // n)
    # Number of an n-gram's first word: n times its number, minus the words missing in earlier documents' last n-grams.
    lead = first_word - n * (np.cumsum(ngrams) - ngrams)
    first = n * np.arange(ngrams.sum()) + np.repeat(lead, ngrams)
    return word_start[first], np.repeat(np.arange(len(lengths), dtype=np.uint64), ngrams)


def flag_reader(dataset: Dataset, wanted: int) -> ReadFlags | None:
    """Reader of the wanted flag bits of a block's tokens; None if no bits are wanted.

    Raises:
        UserError: if the data set lacks the information.
    """
    readers: list[ReadFlags] = []
    if wanted & TokenFlag.TARGET:
        check_targets(dataset)
        readers.append(lambda tokens, block: np.asarray(dataset.targets(block)) * np.uint8(TokenFlag.TARGET))
    if wanted & TokenFlag.WORD_START:
        begins_word = _word_starts(dataset, "masking whole words")
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


def word_order(dataset: Dataset, n: int, seed: int) -> Reorder | None:
    """Token order of a block whose n-grams of words are shuffled within documents; None if n is 0.

    Raises:
        UserError: if the word starts are not known.
    """
    if not n:
        return None
    begins_word, key = _word_starts(dataset, "data.shuffled_ngrams"), derive_key(seed, "word order")
    return lambda tokens, lengths, block: shuffled_ngrams(lengths, begins_word(tokens, block), n, key, block)


def _word_starts(dataset: Dataset, purpose: str) -> Callable[[NDArray[np.unsignedinteger], int], NDArray[np.bool_]]:
    """Function of (tokens [T], block) that says which tokens begin a word: [T]."""
    of_ids = dataset.begins_word
    if of_ids is not None:
        return lambda tokens, block: of_ids[tokens]
    if dataset.manifest.tokenizer.continuation_prefix is not None:
        raise UserError(
            f"{dataset.location} has no tokenizer files, which tell where words begin; {purpose} needs them"
        )
    return lambda tokens, block: np.asarray(dataset.word_starts(block))  # stored if the ids do not say it
