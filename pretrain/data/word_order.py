"""Word-order ablation: the n-grams of words of each document in random order, as a pure function of the block.

After Sinha, Jia, Hupkes, Pineau, Williams and Kiela, "Masked Language Modeling and the Distributional Hypothesis: Order
Word Matters Pre-training for Little", EMNLP 2021 (arXiv:2104.06644), who pretrain RoBERTa on sentences whose n-grams of
words (n from 1 to 4) are permuted. What differs here:

- Theirs stay within their sentence, ours within their document: shards know no sentences. To repeat the sentence
  setting, prepare the corpus with one sentence a document.
- Theirs are shuffled in the text, before it is cut into word-pieces, ours after. With WordPiece that is the same, with
  byte-level BPE a document's first word keeps the piece that it has without a space before it, wherever it goes.
  Either way the pieces of a word stay together, which gives away some order: Ravishankar et al., "Word Order Does
  Matter (And Shuffled Language Models Know It)", ACL 2022 (arXiv:2203.10995).
- Punctuation marks are words of their own where the tokenizer makes them so, as BERT's does.
- Every permutation is equally likely, the one that changes nothing included.
"""

import numpy as np
from numpy.typing import NDArray

from pretrain.philox import Key, philox


def shuffled_ngrams(
    document_lengths: NDArray[np.uint32], begins_word: NDArray[np.bool_], n: int, key: Key, block: int
) -> NDArray[np.int64]:
    """Where a block's tokens come from when the n-grams of words are permuted uniformly within each document.

    A word runs from a word start to the next, or to the document's end; a document's first token begins a word. From a
    document's start on, each n consecutive words are an n-gram, the last one what remains. Draws are keyed by (key,
    block, number of the n-gram in the block), so the order is the same in every epoch; two n-grams of a document share
    a draw, and so keep their order, with a chance of 2**-32.

    Args:
        document_lengths: [D] tokens of each document, T in all; may be 0.
        begins_word: [T] whether a token begins a word.
        n: words of an n-gram, at least 1.
        key: of this purpose.
        block: number of the block in the data set.

    Returns:
        [T] for each place in the block, the place of the token that goes there.

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
    # Where an n-gram's first token comes from, less where it goes: the same for all of its tokens.
    offset = start[order] - (np.cumsum(length) - length)
    return np.arange(len(begins_word)) + np.repeat(offset, length)


def _ngrams(
    lengths: NDArray[np.int64], begins_word: NDArray[np.bool_], n: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Each n-gram's first token int64 [G] and its document's number uint64 [G], in the block's order."""
    document_start = np.cumsum(lengths) - lengths
    begins = begins_word.copy()
    begins[document_start] = True
    word_start = np.flatnonzero(begins)
    first_word = np.searchsorted(word_start, document_start)
    ngrams = -(-np.diff(first_word, append=len(word_start)) // n)
    # The number of an n-gram's first word: n times its own number, less what the documents before it are short of.
    lead = first_word - n * (np.cumsum(ngrams) - ngrams)
    first = n * np.arange(ngrams.sum()) + np.repeat(lead, ngrams)
    return word_start[first], np.repeat(np.arange(len(lengths), dtype=np.uint64), ngrams)


def _draws(count: int, key: Key, block: int) -> NDArray[np.uint64]:
    """`count` uniform 32-bit numbers, four of each counter."""
    words = philox(key, np.arange(-(-count // 4)), block & 0xFFFFFFFF, block >> 32, 0)
    return np.stack(words, axis=-1).reshape(-1)[:count]
