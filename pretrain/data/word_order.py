"""Word-order ablation: shuffle the n-grams of words within each document, as a pure function of the block.

After Sinha, Jia, Hupkes, Pineau, Williams and Kiela, "Masked Language Modeling and the Distributional Hypothesis: Order
Word Matters Pre-training for Little", EMNLP 2021 (arXiv:2104.06644). They pretrain RoBERTa on sentences whose n-grams
of words (n from 1 to 4) are permuted. Differences:

- Their n-grams stay within the sentence, ours within the document, because shards do not store sentences. To repeat the
  sentence setting, prepare the corpus with one sentence per document.
- They shuffle the text before tokenization; we shuffle the tokens. With WordPiece the result is the same. With
  byte-level BPE, the first word of a document keeps the token it has without a leading space. In both cases the tokens
  of a word stay together, which reveals some order: Ravishankar et al., "Word Order Does Matter (And Shuffled Language
  Models Know It)", ACL 2022 (arXiv:2203.10995).
- Punctuation marks are separate words if the tokenizer splits them off, as BERT's does.
- Every permutation is equally likely, including the identity.
"""

import numpy as np
from numpy.typing import NDArray

from pretrain.philox import Key, philox


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
        key: of this purpose.
        block: number of the block in the data set.

    Returns:
        [T] the source place of the token at each place of the block.

    Raises:
        ValueError: if n is below 1 or the lengths do not add up to T.
    """
    if n < 1:
        raise ValueError(f"n-grams of {n} words")
    lengths = document_lengths[document_lengths > 0].astype(np.int64)
    if len(begins_word) != lengths.sum():
        raise ValueError(f"{len(begins_word)} word starts, documents of {lengths.sum()} tokens")
    start, document = _ngrams(lengths, begins_word, n)
    order = np.argsort((document << np.uint64(32)) | _draws(len(start), key, block), kind="stable")
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


def _draws(count: int, key: Key, block: int) -> NDArray[np.uint64]:
    """`count` uniform 32-bit numbers, four from each counter."""
    words = philox(key, np.arange(-(-count // 4)), block & 0xFFFFFFFF, block >> 32, 0)
    return np.stack(words, axis=-1).reshape(-1)[:count]
