"""Which units of a row are predicted: the oracle of every faster path.

A unit is what is selected as a whole: a token, a word, a span (pretrain.masking.units). Selection is systematic
sampling (Madow, "On the theory of systematic sampling, II", 1949) of units in random order: they are laid around a
circle as long as the row's n ordinary tokens, turned by a uniform number of tokens, and those that begin within the
first k are taken. So each unit, whatever its length, is selected with the same probability k / n; k tokens are selected
on average; and a row has at most the longest unit less one token more or fewer. Where units are tokens, it has k.

A higher k selects the same units, and others.
"""

import numpy as np
from numpy.typing import NDArray

from pretrain.masking.draws import scaled


def fixed(rate: float) -> int:
    """A share as a whole number of 2**-32: every device rounds it alike."""
    return round(rate * 2**32)


def count(rate: float, ordinary: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """round(rate * ordinary), halves up: k of a row with so many ordinary tokens."""
    return (fixed(rate) * np.asarray(ordinary, dtype=np.int64) + (1 << 31)) >> 32


def order(draws: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """A random number for each slot, no two of a row alike: [R, S], by a draw for each.

    The draw stands above the slot's number. The bits of that are flipped by the draw of the row's first slot, which is
    always special and needs none: so of two slots with the same draw, each comes first as often.
    """
    n_rows, seq_len = draws.shape
    found = np.empty((n_rows, seq_len), dtype="<u4")
    halves = found.view("<u2").reshape(n_rows, seq_len, 2)
    np.bitwise_xor(np.arange(seq_len, dtype="<u2"), draws[:, :1], out=halves[..., 0])
    halves[..., 1] = draws
    return found


def select_tokens(
    ordinary: NDArray[np.bool_], counts: NDArray[np.int64], draws: NDArray[np.uint16]
) -> NDArray[np.bool_]:
    """The counts [R] ordinary tokens of each row that come first in `order`: bool [R, S].

    Every set of that size is as likely as any.
    """
    chosen = _smallest(draws, ordinary, counts)
    # The draw alone decides nearly always, and is sorted faster; but two slots may have the same.
    unsure = np.flatnonzero(np.count_nonzero(chosen, axis=1) != counts)
    if len(unsure):
        chosen[unsure] = _smallest(order(draws[unsure]), ordinary[unsure], counts[unsure])
    return chosen


def _smallest(
    numbers: NDArray[np.unsignedinteger], ordinary: NDArray[np.bool_], counts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Where the counts [R] smallest numbers of each row are among the ordinary ones, and those equal to the last."""
    ranked = np.where(ordinary, numbers, np.iinfo(numbers.dtype).max)
    ranked.sort(axis=1)
    last = ranked[np.arange(len(ranked)), np.maximum(counts, 1) - 1]
    return (numbers <= last[:, None]) & ordinary & (counts > 0)[:, None]


def select_units(
    ordinary: NDArray[np.bool_],
    begins: NDArray[np.bool_],
    counts: NDArray[np.int64],
    draws: NDArray[np.uint16],
    turns: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Units of each row, counts [R] tokens on average: bool [R, S].

    Args:
        ordinary: [R, S] tokens that may be selected.
        begins: [R, S] where a unit begins: at every ordinary token that starts a row or follows a special token, at
            least. A unit ends before the next one and before the next special token.
        counts: [R] k, at most the row's ordinary tokens.
        draws: [R, S] 16-bit numbers, by which units are ordered.
        turns: [R] 32-bit numbers, by which circles are turned.
    """
    n_rows, seq_len = ordinary.shape
    starts = np.flatnonzero(begins | ~ordinary)
    lengths = np.diff(starts, append=n_rows * seq_len)
    sizes = np.zeros((n_rows, seq_len), dtype=np.int64)
    sizes.reshape(-1)[starts] = lengths
    rows, first, offset = _across(ordinary, starts, turns)
    # The unit across the circle's beginning takes no place in the queue, but its rest comes before all others.
    sizes.reshape(-1)[starts[first]] = 0
    goal = counts.copy()
    goal[rows] -= lengths[first] - offset
    chosen = _first_units(begins & ordinary, sizes, goal, draws)
    n_ordinary = np.count_nonzero(ordinary, axis=1)[rows]
    chosen.reshape(-1)[starts[first]] = (n_ordinary - offset) % n_ordinary < counts[rows]
    return np.repeat(chosen.reshape(-1)[starts], lengths).reshape(n_rows, seq_len)


def _first_units(
    is_unit: NDArray[np.bool_], sizes: NDArray[np.int64], goal: NDArray[np.int64], draws: NDArray[np.uint16]
) -> NDArray[np.bool_]:
    """The units that begin within the first `goal` [R] tokens when they stand in `order`: bool [R, S].

    sizes [R, S]: the tokens of the unit that begins there, at least 1 but for one unit of a row.
    """
    found = order(draws)
    queue = np.where(is_unit, found, np.uint32(2**32 - 1))
    queue.sort(axis=1)
    last_goal = max(0, int(goal.max(initial=0)))
    # A unit's slot is the lower half of its order, flipped back. What is no unit comes last: its slot is of no matter,
    # and where it is reached, all units are taken.
    slots = np.minimum((queue[:, : last_goal + 1] & 0xFFFF) ^ draws[:, :1], is_unit.shape[1] - 1)
    ends = np.cumsum(np.take_along_axis(sizes, slots.astype(np.int64), axis=1), axis=1)
    taken = (goal > 0) + np.count_nonzero(ends < goal[:, None], axis=1)
    last = queue[np.arange(len(queue)), np.maximum(taken, 1) - 1]
    return is_unit & (found <= last[:, None]) & (taken > 0)[:, None]


def _across(
    ordinary: NDArray[np.bool_], starts: NDArray[np.int64], turns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """A uniform token of each row that has any: the row, its unit's number in `starts`, and its place in the unit."""
    n_ordinary = np.count_nonzero(ordinary, axis=1)
    rows = np.flatnonzero(n_ordinary)
    before = np.cumsum(n_ordinary) - n_ordinary
    token = np.flatnonzero(ordinary)[(before + scaled(turns, n_ordinary))[rows]]
    unit = np.searchsorted(starts, token, side="right") - 1
    return rows, unit, token - starts[unit]
