"""Best-fit packing of whole pieces into rows, computed on the histogram of piece sizes.

Rows are filled one after another. A row takes the largest remaining piece that fits. When one or two remaining pieces
fill the row exactly, it takes those instead. The idea is Best Two Fit (Friesen and Langston, "Analysis of a compound
bin packing algorithm", SIAM J. Discrete Math. 4, 1991); without the exact ends, this is first-fit decreasing. Krell,
Kosec, Perez and Fitzgibbon, "Efficient sequence packing without cross-contamination", 2021 (arXiv:2107.02027) also pack
sequences by their histogram.

Guarantee: no row is closed while a remaining piece fits in it.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def best_fit(sizes: NDArray[np.int64], seq_len: int) -> NDArray[np.int64]:
    """The row of each piece: int64 [N]; rows count from 0, none is empty.

    Args:
        sizes: [N] slots of each piece, in non-increasing order, each in 1..seq_len.
        seq_len: slots of a row.
    """
    entries: list[tuple[int, int, int, int]] = []  # size, pieces of it a row, first row, rows
    n_rows = 0
    for pieces, times in compositions(np.bincount(sizes, minlength=seq_len + 1).tolist(), seq_len):
        entries.extend((size, each, n_rows, times) for size, each in pieces.items())
        n_rows += times
    size, each, first_row, times_ = np.array(entries, dtype=np.int64).reshape(-1, 4).T
    by_size = np.argsort(-size, kind="stable")
    each, first_row, total = each[by_size], first_row[by_size], (each * times_)[by_size]
    begin = np.cumsum(total) - total
    within = np.arange(len(sizes)) - np.repeat(begin, total)
    return np.repeat(first_row, total) + within // np.repeat(each, total)


def compositions(counts: list[int], seq_len: int) -> Iterator[tuple[dict[int, int], int]]:
    """Yield row compositions: ({size: pieces of it per row}, number of such rows), until all pieces are placed.

    A composition repeats while its sizes last. So each one uses up at least one size, and there are at most as many
    compositions as sizes.

    Args:
        counts: [seq_len + 1] pieces of each size, none of size 0; modified.
        seq_len: slots of a row.
    """
    # Sets of sizes as bits of integers: bit s of `left` and bit seq_len - s of `mirrored` are set while size s remains.
    left = sum(1 << size for size, count in enumerate(counts) if count)
    mirrored = sum(1 << seq_len - size for size, count in enumerate(counts) if count)
    while left:
        pieces: dict[int, int] = {}
        space = seq_len
        while fitting := left & (2 << space) - 1:
            size, number = fitting.bit_length() - 1, 1
            if space > 2 * size:  # no two pieces can fill it, before or after any but the last of these
                number = min(counts[size], (space - size - 1) // size)
            elif size < space:
                pairs = fitting & mirrored >> seq_len - space  # bit s: sizes s and space - s remain
                if space % 2 == 0 and counts[space // 2] == 1:
                    pairs &= ~(1 << space // 2)
                if smaller := pairs & (2 << space // 2) - 1:
                    # The most equal pair: the smallest pieces are the most useful later.
                    size = space - (smaller.bit_length() - 1)
            pieces[size] = pieces.get(size, 0) + number
            counts[size] -= number
            space -= number * size
            if not counts[size]:
                left ^= 1 << size
                mirrored ^= 1 << seq_len - size
        again = min(counts[size] // number for size, number in pieces.items())
        for size, number in pieces.items():
            counts[size] -= again * number
            if again and not counts[size]:
                left ^= 1 << size
                mirrored ^= 1 << seq_len - size
        yield pieces, again + 1
