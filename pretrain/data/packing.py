"""From lengths to rows: fragments are cut into pieces, and pieces are packed into rows of `seq_len` slots.

A fragment is a document, or what is left of one when the sequence length changed within a window. Every piece costs
two slots more than its tokens, for [CLS] and [SEP]. Nothing is dropped or truncated. The modes:

best_fit  A fragment that fits in a row is never cut. A longer one is cut into full rows and a rest; rests and whole
          fragments share rows (best_fit.py). Where rows are then less than TIGHT full, full rows are given up, as few
          as needed, and their tokens fill the largest holes that others have. So at least TIGHT of the slots are
          used, unless the fragments that fit waste more and those that do not are too few to fill the holes, or
          the window is so small that part of one row is more than that.
concat    Fragments one after another in random order, cut wherever a row ends. At most two slots are lost where one
          row ends and the next begins.
none      One piece a row, the rest padding: the classical baseline. Longer fragments are cut as above.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pretrain.data.best_fit import best_fit

Mode = Literal["best_fit", "concat", "none"]

SPECIALS_PER_PIECE = 2  # [CLS] and [SEP]
TIGHT = (995, 1000)  # of the slots of a window's rows
LOW_HALF = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True)
class PackedLayout:
    """A packed set of pieces. Row r holds the pieces `row_starts[r]` to `row_starts[r + 1]`; no row is empty.

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
class Pieces:
    """Pieces in no particular order, and the row of each: three arrays int64 [P]."""

    start: NDArray[np.int64]
    length: NDArray[np.int64]
    row: NDArray[np.int64]


def randoms_needed(lengths: NDArray[np.int64], seq_len: int) -> int:
    """How many random numbers `pack` uses at most, in any mode, for fragments of these lengths."""
    return int((-(-(lengths + SPECIALS_PER_PIECE) // (seq_len - SPECIALS_PER_PIECE))).sum())


def pack(
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    seq_len: int,
    random: NDArray[np.uint64],
    mode: Mode,
) -> PackedLayout:
    """Pack fragments into shuffled rows.

    Args:
        starts: [F] offset of each fragment's first token in the concatenated tokens of all documents.
        lengths: [F] its tokens; those of length 0 yield nothing.
        seq_len: slots of a row, more than SPECIALS_PER_PIECE.
        random: uniform 64-bit numbers, at least `randoms_needed(lengths, seq_len)`; the high halves decide which
            pieces of one length go together (best_fit) or the order of fragments (concat), the low halves the order
            of rows.
        mode: how to pack, see above.

    Returns:
        Rows in which every token of every fragment occurs exactly once.
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
        pieces = Pieces(start, length, np.arange(len(start)))
    return _shuffled(pieces, random)


def remaining(
    rows: PackedLayout, first_row: int, document_starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What rows `first_row` and later hold, as fragments (starts [F], lengths [F]) in the order of the corpus.

    Pieces that touch within a document are joined again.

    Args:
        rows: of `pack`.
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
    ends_there = np.roll(begins, -1)  # before each beginning but the first, and after the last piece
    return starts[begins], ends[ends_there] - starts[begins]


Spans = tuple[NDArray[np.int64], NDArray[np.int64]]  # starts, lengths


def _cut(starts: NDArray[np.int64], lengths: NDArray[np.int64], capacity: int) -> tuple[Spans, Spans]:
    """Fragments longer than `capacity` as pieces of exactly that length, and all that is left: fragments and rests."""
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
) -> Pieces:
    capacity = seq_len - SPECIALS_PER_PIECE
    (full, _), (starts, lengths) = _cut(starts, lengths, capacity)
    longest_first = (capacity - lengths).view(np.uint64) << np.uint64(32)
    order = _argsort(longest_first | random[: len(starts)] >> np.uint64(32), 32 + seq_len.bit_length())
    starts, lengths = starts[order], lengths[order]
    shared = Pieces(starts, lengths, best_fit(lengths + SPECIALS_PER_PIECE, seq_len))
    full, shared = _fill_holes(full, shared, seq_len)
    n_shared = int(shared.row.max(initial=-1)) + 1
    return Pieces(
        np.concatenate([shared.start, full]),
        np.concatenate([shared.length, np.full(len(full), capacity)]),
        np.concatenate([shared.row, n_shared + np.arange(len(full))]),
    )


def _fill_holes(full: NDArray[np.int64], shared: Pieces, seq_len: int) -> tuple[NDArray[np.int64], Pieces]:
    """Give up full rows (`full`: where their tokens start) to fill the largest holes of the others, to be TIGHT."""
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
    return np.delete(full, chosen), Pieces(
        np.concatenate([shared.start, full[chosen][piece] + offset]),
        np.concatenate([shared.length, length]),
        np.concatenate([shared.row, holes[hole]]),
    )


def _concat(starts: NDArray[np.int64], lengths: NDArray[np.int64], seq_len: int, random: NDArray[np.uint64]) -> Pieces:
    capacity = seq_len - SPECIALS_PER_PIECE
    order = _argsort(random[: len(starts)] >> np.uint64(32), 32)
    n_rows = -(-int((lengths + SPECIALS_PER_PIECE).sum()) // capacity)
    fragment, offset, length, row = _pour(lengths[order], np.full(n_rows, capacity))
    if capacity <= SPECIALS_PER_PIECE:  # a row can have room for no more than what separates two fragments
        row = np.unique(row, return_inverse=True)[1]
    return Pieces(starts[order][fragment] + offset, length, row)


def _pour(lengths: NDArray[np.int64], capacities: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Lay fragments one after another, two slots apart, over spaces; where a space ends, what lies there is cut.

    Each space stands between a [CLS] and a [SEP]; the two slots between fragments are the [SEP] of one and the [CLS]
    of the next. Where a space ends within them, they are left empty.

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
    """How many values are at most each point, int64 [points]; both are in order."""
    return np.cumsum(np.bincount(np.searchsorted(points, values), minlength=len(points) + 1))[:-1]


def _argsort(keys: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    """The stable order of keys below 2**bits, int64 [N].

    A radix sort by 16 bits at a time: numpy has one for 16-bit integers, ten times as fast as its sort of longer ones.
    """
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    for shift in range(16, bits, 16):
        digits = (keys >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def _shuffled(pieces: Pieces, random: NDArray[np.uint64]) -> PackedLayout:
    """Rows in random order; the pieces of a row are together, in the order that they have."""
    n_rows = int(pieces.row.max(initial=-1)) + 1
    place = np.empty(n_rows, dtype=np.int64)
    place[_argsort(random[:n_rows] & LOW_HALF, 32)] = np.arange(n_rows)
    place_of_piece = place[pieces.row]
    order = _argsort(place_of_piece.view(np.uint64), n_rows.bit_length())
    row_starts = np.zeros(n_rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(place_of_piece, minlength=n_rows), out=row_starts[1:])
    return PackedLayout(pieces.start[order], pieces.length[order], row_starts)
