"""Packing: cut fragments into pieces and pack the pieces into rows of `seq_len` slots.

A fragment is a document, or its unread rest after the sequence length changed within a window. Every piece needs two
slots more than its tokens, for [CLS] and [SEP]. No token is dropped. The modes:

best_fit  A fragment that fits in a row is never cut. A longer one is cut into full rows and a rest; rests and whole
          fragments share rows. If these rows are less than TIGHT full, some full rows are given up, as few as
          needed, and their tokens fill the largest holes of other rows. So at least TIGHT of the slots are used.
          Exceptions: the fragments that fit waste more and there are too few full rows to fill the holes, or the
          window is so small that part of one row exceeds the limit.
concat    Fragments one after another in random order, cut at the end of each row. At most two slots are lost between
          two rows.
none      One piece per row, the rest padding: the classical baseline. Longer fragments are cut as above.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

SPECIALS_PER_PIECE = 2  # [CLS] and [SEP]
TIGHT = (995, 1000)  # least share of used slots in a window's rows
LOW_HALF = np.uint64(0xFFFFFFFF)


def best_fit(sizes: NDArray[np.int64], seq_len: int) -> NDArray[np.int64]:
    """The row of each piece: int64 [N]; rows count from 0, none is empty. Works on the histogram of sizes.

    Rows are filled one after another. A row takes the largest remaining piece that fits. When one or two remaining
    pieces fill the row exactly, it takes those instead. So no row is closed while a remaining piece fits in it.

    The idea is Best Two Fit (Friesen and Langston, "Analysis of a compound bin packing algorithm", SIAM J. Discrete
    Math. 4, 1991). Krell, Kosec, Perez and Fitzgibbon, "Efficient sequence packing without cross-contamination", 2021
    (arXiv:2107.02027) also pack sequences by their histogram.

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


Mode = Literal["best_fit", "concat", "none"]


@dataclass(frozen=True)
class PackedLayout:
    """Packed pieces. Row r holds the pieces `row_starts[r]` to before `row_starts[r + 1]`; no row is empty.

    piece_start [P] int64: offset of the piece's first token in the concatenated tokens of all documents.
    piece_length [P] int64: its tokens, specials not counted, at least 1.
    row_starts [R + 1] int64.
    """

    piece_start: NDArray[np.int64]
    piece_length: NDArray[np.int64]
    row_starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row_starts) - 1


@dataclass(frozen=True)
class PackedPieces:
    """Pieces in no particular order, and the row of each: three arrays int64 [P]."""

    start: NDArray[np.int64]
    length: NDArray[np.int64]
    row: NDArray[np.int64]


def randoms_needed(lengths: NDArray[np.int64], seq_len: int) -> int:
    """Upper bound on the random numbers that `pack` uses, in any mode, for fragments of these lengths."""
    return int((-(-(lengths + SPECIALS_PER_PIECE) // (seq_len - SPECIALS_PER_PIECE))).sum())


def pack(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], seq_len: int, random: NDArray[np.uint64], mode: Mode
) -> PackedLayout:
    """Pack fragments into shuffled rows.

    Args:
        starts: [F] offset of each fragment's first token in the concatenated tokens of all documents.
        lengths: [F] tokens of each fragment; 0 is allowed and yields no piece.
        seq_len: slots of a row, more than SPECIALS_PER_PIECE.
        random: uniform 64-bit numbers, at least `randoms_needed(lengths, seq_len)`; the high halves decide which
            pieces of one length share a row (best_fit) or the order of fragments (concat). The low halves decide the
            order of rows.
        mode: see the module docstring.

    Returns:
        Rows that contain every token of every fragment exactly once.
    """
    if not lengths.all():
        starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    if mode == "best_fit":
        pieces = _best_fit(starts, lengths, seq_len, random)
    elif mode == "concat":
        pieces = _concat(starts, lengths, seq_len, random)
    else:
        full, rest = _cut(starts, lengths, seq_len - SPECIALS_PER_PIECE)
        start, length = (np.concatenate(both) for both in zip(full, rest, strict=True))
        pieces = PackedPieces(start, length, np.arange(len(start)))
    return _shuffled(pieces, random)


def remaining(
    rows: PackedLayout, first_row: int, document_starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Contents of row `first_row` and later, as fragments (starts [F], lengths [F]) in corpus order.

    Adjacent pieces of a document are joined.

    Args:
        rows: result of `pack`.
        first_row: 0..len(rows).
        document_starts: [D] offset of each document's first token, in order.
    """
    first_piece = rows.row_starts[first_row]
    starts, lengths = rows.piece_start[first_piece:], rows.piece_length[first_piece:]
    order = _argsort(starts.view(np.uint64), int(starts.max(initial=0)).bit_length())
    starts, lengths = starts[order], lengths[order]
    ends = starts + lengths
    document = np.searchsorted(document_starts, starts, side="right")
    begins = np.ones(len(starts), dtype=bool)
    begins[1:] = (starts[1:] != ends[:-1]) | (document[1:] != document[:-1])
    ends_there = np.roll(begins, -1)  # before each beginning except the first, and after the last piece
    return starts[begins], ends[ends_there] - starts[begins]


CutPieces = tuple[NDArray[np.int64], NDArray[np.int64]]  # starts, lengths


def _cut(starts: NDArray[np.int64], lengths: NDArray[np.int64], capacity: int) -> tuple[CutPieces, CutPieces]:
    """Cut longer fragments into pieces of exactly `capacity`. Returns (these pieces, whole fragments and rests)."""
    long = np.flatnonzero(lengths > capacity)
    number = lengths[long] // capacity
    first = np.cumsum(number) - number
    full = np.repeat(starts[long] - first * capacity, number) + np.arange(number.sum()) * capacity
    starts, lengths = starts.copy(), lengths.copy()
    starts[long] += number * capacity
    lengths[long] -= number * capacity
    left = lengths > 0
    return (full, np.full(len(full), capacity)), (starts[left], lengths[left])


def _best_fit(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], seq_len: int, random: NDArray[np.uint64]
) -> PackedPieces:
    capacity = seq_len - SPECIALS_PER_PIECE
    (full, _), (starts, lengths) = _cut(starts, lengths, capacity)
    longest_first = (capacity - lengths).view(np.uint64) << np.uint64(32)
    order = _argsort(longest_first | random[: len(starts)] >> np.uint64(32), 32 + seq_len.bit_length())
    starts, lengths = starts[order], lengths[order]
    shared = PackedPieces(starts, lengths, best_fit(lengths + SPECIALS_PER_PIECE, seq_len))
    full, shared = _fill_holes(full, shared, seq_len)
    n_shared = int(shared.row.max(initial=-1)) + 1
    return PackedPieces(
        np.concatenate([shared.start, full]),
        np.concatenate([shared.length, np.full(len(full), capacity)]),
        np.concatenate([shared.row, n_shared + np.arange(len(full))]),
    )


def _fill_holes(full: NDArray[np.int64], shared: PackedPieces, seq_len: int) -> tuple[NDArray[np.int64], PackedPieces]:
    """Give up full rows (`full`: starts of their tokens) to fill the largest holes of other rows, until TIGHT holds."""
    sizes = shared.length + SPECIALS_PER_PIECE
    n_shared = int(shared.row.max(initial=-1)) + 1
    used = int(sizes.sum()) + len(full) * seq_len
    numerator, denominator = TIGHT
    enough = max(-(-used // seq_len), used * denominator // (seq_len * numerator))
    wanted = min(n_shared + len(full) - enough, len(full))
    if wanted <= 0:
        return full, shared
    space = seq_len - np.bincount(shared.row, weights=sizes, minlength=n_shared).astype(np.int64)
    holes = np.argsort(-space, kind="stable")[: np.count_nonzero(space > SPECIALS_PER_PIECE)]
    inside = space[holes] - SPECIALS_PER_PIECE
    given_up = min(wanted, int(inside.sum() + SPECIALS_PER_PIECE) // seq_len)
    chosen = np.arange(given_up) * len(full) // max(given_up, 1)  # evenly over the window
    piece, offset, length, hole = _pour(np.full(given_up, seq_len - SPECIALS_PER_PIECE), inside)
    return np.delete(full, chosen), PackedPieces(
        np.concatenate([shared.start, full[chosen][piece] + offset]),
        np.concatenate([shared.length, length]),
        np.concatenate([shared.row, holes[hole]]),
    )


def _concat(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], seq_len: int, random: NDArray[np.uint64]
) -> PackedPieces:
    capacity = seq_len - SPECIALS_PER_PIECE
    order = _argsort(random[: len(starts)] >> np.uint64(32), 32)
    n_rows = -(-int((lengths + SPECIALS_PER_PIECE).sum()) // capacity)
    fragment, offset, length, row = _pour(lengths[order], np.full(n_rows, capacity))
    if capacity <= SPECIALS_PER_PIECE:  # a row may have no room beyond the separator of two fragments
        row = np.unique(row, return_inverse=True)[1]
    return PackedPieces(starts[order][fragment] + offset, length, row)


def _pour(lengths: NDArray[np.int64], capacities: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Lay fragments one after another, two slots apart, over spaces; cut a fragment where a space ends.

    Each space has a [CLS] before it and a [SEP] after it. The two slots between fragments are the [SEP] of one and the
    [CLS] of the next; they stay empty if the space ends within them.

    Returns:
        (fragment, offset in it, length, space) of each piece, int64 [P], in order; every length is at least 1.
    """
    stride = lengths + SPECIALS_PER_PIECE
    begins = np.cumsum(stride) - stride
    space_ends = np.cumsum(capacities)
    first = _count_up_to(begins, space_ends)
    number = _count_up_to(begins + lengths - 1, space_ends) - first + 1
    fragment = np.repeat(np.arange(len(lengths)), number)
    space = np.arange(len(fragment)) + np.repeat(first - (np.cumsum(number) - number), number)
    begin = np.maximum(begins[fragment], (space_ends - capacities)[space])
    end = np.minimum((begins + lengths)[fragment], space_ends[space])
    return fragment, begin - begins[fragment], end - begin, space


def _count_up_to(points: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each point, count the values less than or equal to it: int64 [points]. Both inputs are sorted."""
    return np.cumsum(np.bincount(np.searchsorted(points, values), minlength=len(points) + 1))[:-1]


def _argsort(keys: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    """Stable argsort of keys below 2**bits, int64 [N].

    A radix sort by 16 bits at a time: numpy sorts 16-bit integers ten times as fast as longer ones.
    """
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    for shift in range(16, bits, 16):
        digits = (keys >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def _shuffled(pieces: PackedPieces, random: NDArray[np.uint64]) -> PackedLayout:
    """Shuffle rows; the pieces of a row stay together and keep their order."""
    n_rows = int(pieces.row.max(initial=-1)) + 1
    place = np.empty(n_rows, dtype=np.int64)
    place[_argsort(random[:n_rows] & LOW_HALF, 32)] = np.arange(n_rows)
    place_of_piece = place[pieces.row]
    order = _argsort(place_of_piece.view(np.uint64), n_rows.bit_length())
    row_starts = np.zeros(n_rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(place_of_piece, minlength=n_rows), out=row_starts[1:])
    return PackedLayout(pieces.start[order], pieces.length[order], row_starts)
