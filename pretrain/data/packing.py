"""From document lengths to rows: documents are cut into pieces, and pieces are packed into rows of `seq_len`.

Every piece costs two slots more than its tokens, for [CLS] and [SEP]. Nothing is dropped or truncated: a document
longer than a row becomes several pieces. Packing is best-fit decreasing on the histogram of lengths, as in Krell,
Kosec, Perez and Fitzgibbon, "Efficient sequence packing without cross-contamination", 2021 (arXiv:2107.02027).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SPECIALS_PER_PIECE = 2  # [CLS] and [SEP]


@dataclass(frozen=True)
class Rows:
    """A packed set of pieces. Row r holds the pieces `row_starts[r]` to `row_starts[r + 1]`.

    piece_start [P] int64: offset of the piece's first token in the concatenated tokens of all documents.
    piece_length [P] int64: its tokens, specials not counted.
    row_starts [R + 1] int64.
    """

    piece_start: NDArray[np.int64]
    piece_length: NDArray[np.int64]
    row_starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row_starts) - 1


def cut(document_lengths: NDArray[np.int64], capacity: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut documents into pieces of at most `capacity` tokens: (starts [P], lengths [P]), in document order.

    Empty documents yield no piece.
    """
    pieces = -(-document_lengths // capacity)
    document = np.repeat(np.arange(len(document_lengths)), pieces)
    first_piece = np.cumsum(pieces) - pieces
    within = (np.arange(len(document)) - first_piece[document]) * capacity
    document_start = np.cumsum(document_lengths) - document_lengths
    return document_start[document] + within, np.minimum(document_lengths[document] - within, capacity)


def pack(document_lengths: NDArray[np.int64], seq_len: int, order: NDArray[np.uint64]) -> Rows:
    """Pack documents into rows, pieces and rows shuffled by the random numbers `order`.

    Args:
        document_lengths: [D] tokens of each document.
        seq_len: slots of a row.
        order: uniform 64-bit numbers, at least as many as twice the pieces; they decide which pieces of one length
            go together, and the order of rows.

    Returns:
        Rows in which every token of every document occurs exactly once.
    """
    starts, lengths = cut(document_lengths.astype(np.int64), seq_len - SPECIALS_PER_PIECE)
    shuffled = np.argsort(order[: len(starts)], kind="stable")
    by_length = shuffled[np.argsort(-lengths[shuffled], kind="stable")]
    row = best_fit_decreasing(lengths[by_length] + SPECIALS_PER_PIECE, seq_len)
    n_rows = int(row.max()) + 1 if len(row) else 0
    place = np.empty(n_rows, dtype=np.int64)
    place[np.argsort(order[len(starts) : len(starts) + n_rows], kind="stable")] = np.arange(n_rows)
    row = place[row]
    final = np.argsort(row, kind="stable")
    row_starts = np.zeros(n_rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(row, minlength=n_rows), out=row_starts[1:])
    pieces = by_length[final]
    return Rows(starts[pieces], lengths[pieces], row_starts)


def best_fit_decreasing(sizes: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """The row of each item: int64 [len(sizes)].

    Args:
        sizes: slots of each item, in non-increasing order, each in 1..capacity.
        capacity: slots of a row.

    Items of one size are placed together: as many as fit go into each row of the tightest free space, which is what
    the item-by-item algorithm does, at the cost of one step a size and space instead of one an item.
    """
    row = np.empty(len(sizes), dtype=np.int64)
    values, counts = np.unique(-sizes, return_counts=True)
    free: list[list[NDArray[np.int64]]] = [[] for _ in range(capacity + 1)]
    nonempty = 0  # bit s is set while free[s] holds rows
    n_rows = item = 0
    for size, count in zip((-values).tolist(), counts.tolist(), strict=True):
        while count:
            tight = nonempty >> size
            if tight:
                space = size + ((tight & -tight).bit_length() - 1)
                rows = free[space].pop()
                if not free[space]:
                    nonempty &= ~(1 << space)
            else:
                space = capacity
                rows = np.arange(n_rows, n_rows + -(-count // (capacity // size)))
                n_rows += len(rows)
            each = space // size
            full = min(len(rows), count // each)
            groups = [(rows[:full], each)]
            if full < len(rows) and (rest := count - full * each):  # too few items are left to fill one more row
                groups.append((rows[full : full + 1], rest))
            used = 0
            for group, per_row in groups:
                placed = len(group) * per_row
                row[item : item + placed] = np.repeat(group, per_row)
                item, count, used = item + placed, count - placed, used + len(group)
                nonempty |= _release(free, group, space - per_row * size)
            nonempty |= _release(free, rows[used:], space)
    return row


def _release(free: list[list[NDArray[np.int64]]], rows: NDArray[np.int64], space: int) -> int:
    """Give rows back with the space they have left; the bit to set."""
    if not len(rows) or not space:
        return 0
    free[space].append(rows)
    return 1 << space
