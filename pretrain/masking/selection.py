"""Selection of the units of a row to predict.

A unit is selected as a whole: a token, a word, a span (pretrain.masking.units). Selection is systematic sampling
(Madow, "On the theory of systematic sampling, II", 1949) of units in random order. The units are laid around a circle
as long as the row's n ordinary tokens, and the circle is turned by a uniform number of tokens. Units that begin within
the first k tokens are selected. So:

- each unit of any length is selected with the same probability k / n;
- k tokens are selected on average;
- the number of selected tokens in a row differs from k by less than the longest unit. It is k where units are tokens.

A higher k selects the same units and further ones.
"""

import numpy as np
from numpy.typing import NDArray

from pretrain.philox import Key, philox


def of_columns(key: Key, row_ids: NDArray[np.int64], columns: int) -> NDArray[np.uint16]:
    """A uniform 16-bit number for each column of each row [R, 3]: [R, columns].

    A Philox counter is (column // 8, row, window, source and epoch). Column c is the 16 bits from bit 16 * (c % 8) of
    counter c // 8, whose four words are in order, lowest first.
    """
    groups = np.arange(-(-columns // 8))
    w0, w1, w2, w3 = philox(key, groups, row_ids[:, None, 2], row_ids[:, None, 1], row_ids[:, None, 0])
    numbers = np.empty((*w0.shape, 2), dtype="<u8")
    numbers[..., 0], numbers[..., 1] = w0 | (w1 << np.uint64(32)), w2 | (w3 << np.uint64(32))
    return numbers.view("<u2").reshape(len(row_ids), 8 * len(groups))[:, :columns]


def of_rows(key: Key, row_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """A uniform 32-bit number for each row [R, 3]: [R]."""
    return wide(of_columns(key, row_ids, 2))[:, 0]


def wide(numbers: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Join two 16-bit columns, lower half first, to one of 32 bits: [R, 2 * C] to [R, C]."""
    return numbers[:, 0::2].astype(np.int64) | numbers[:, 1::2].astype(np.int64) << 16


def scaled_draws(number: NDArray[np.int64], below: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Scale a 32-bit number to 0..below - 1 (0 if `below` is 0), uniform to within below / 2**32."""
    return (number * below) >> 32


def fixed(rate: float) -> int:
    """A share as a whole number of 2**-32, so that it is rounded the same way everywhere."""
    return round(rate * 2**32)


def count(rate: float, ordinary: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """k of a row with `ordinary` ordinary tokens: round(rate * ordinary), halves up."""
    return (fixed(rate) * np.asarray(ordinary, dtype=np.int64) + (1 << 31)) >> 32


def order(draws: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """A distinct random number for each slot of a row: [R, S], from one draw per slot.

    The upper half is the draw, the lower half the slot's number. The draw of the row's first slot flips the bits of the
    lower half, so of two slots with the same draw each comes first equally often. The first slot is always special and
    does not need its draw.
    """
    n_rows, seq_len = draws.shape
    numbers = np.empty((n_rows, seq_len), dtype="<u4")
    halves = numbers.view("<u2").reshape(n_rows, seq_len, 2)
    np.bitwise_xor(np.arange(seq_len, dtype="<u2"), draws[:, :1], out=halves[..., 0])
    halves[..., 1] = draws
    return numbers


def select_tokens(
    ordinary: NDArray[np.bool_], counts: NDArray[np.int64], draws: NDArray[np.uint16]
) -> NDArray[np.bool_]:
    """Select the first counts [R] ordinary tokens of each row in `order`: bool [R, S].

    Every set of that size is equally likely.
    """
    chosen = _smallest(draws, ordinary, counts)
    # The draw alone nearly always decides and sorts faster, but two slots may have the same draw.
    unsure = np.flatnonzero(np.count_nonzero(chosen, axis=1) != counts)
    if len(unsure):
        chosen[unsure] = _smallest(order(draws[unsure]), ordinary[unsure], counts[unsure])
    return chosen


def _smallest(
    numbers: NDArray[np.unsignedinteger], ordinary: NDArray[np.bool_], counts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Mark the counts [R] smallest numbers of each row's ordinary slots, and numbers equal to the last."""
    ranked = np.where(ordinary, numbers, np.iinfo(numbers.dtype).max)
    ranked.sort(axis=1)
    last = ranked[np.arange(len(ranked)), np.maximum(counts, 1) - 1]
    return (numbers <= last[:, None]) & ordinary & (counts > 0)[:, None]


def random_subset(
    candidates: NDArray[np.bool_], counts: NDArray[np.int64], key: Key, row_ids: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """A uniformly random subset of counts [R] candidates of each row, drawn for rows [R, 3]: bool [R, S]."""
    return select_tokens(candidates, counts, of_columns(key, row_ids, candidates.shape[1]))


def select_units(
    ordinary: NDArray[np.bool_],
    begins: NDArray[np.bool_],
    counts: NDArray[np.int64],
    draws: NDArray[np.uint16],
    row_draws: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Select units of each row, counts [R] tokens on average: bool [R, S].

    Args:
        ordinary: [R, S] tokens that may be selected.
        begins: [R, S] where a unit begins, at least at every ordinary token that starts a row or follows a special
            token. A unit ends before the next unit and before the next special token.
        counts: [R] k, at most the row's ordinary tokens.
        draws: [R, S] 16-bit numbers that order the units.
        row_draws: [R] 32-bit numbers that turn the circles.
    """
    n_rows, seq_len = ordinary.shape
    starts = np.flatnonzero(begins | ~ordinary)
    lengths = np.diff(starts, append=n_rows * seq_len)
    sizes = np.zeros((n_rows, seq_len), dtype=np.int64)
    sizes.reshape(-1)[starts] = lengths
    rows, first, offset = _across(ordinary, starts, row_draws)
    # The unit across the circle's beginning is not in the order; its rest comes before all other units.
    sizes.reshape(-1)[starts[first]] = 0
    goal = counts.copy()
    goal[rows] -= lengths[first] - offset
    chosen = _first_units(begins & ordinary, sizes, goal, draws)
    n_ordinary = np.count_nonzero(ordinary, axis=1)[rows]
    chosen.reshape(-1)[starts[first]] = (n_ordinary - offset) % n_ordinary < counts[rows]
    return np.repeat(chosen.reshape(-1)[starts], lengths).reshape(n_rows, seq_len)


def select_weighted(
    ordinary: NDArray[np.bool_],
    begins: NDArray[np.bool_],
    weights: NDArray[np.float64],
    counts: NDArray[np.int64],
    draws: NDArray[np.int64],
    row_draws: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Select units of each row by weight, counts [R] tokens on average: bool [R, S].

    Units are drawn one after the other without replacement, each with a chance proportional to its weight among those
    that are left. This is the order of -log(u) / weight for uniform u (Efraimidis and Spirakis, "Weighted random
    sampling with a reservoir", 2006). The unit that would exceed the count is selected with the chance that makes the
    average right. So the number of tokens is the count where units are tokens, and differs from it by less than the
    longest unit otherwise. It is lower if the units with a weight have fewer tokens.

    Args:
        ordinary, begins: as for `select_units`.
        weights: [R, S] weights of tokens, 0 where not ordinary; a unit has the mean weight of its tokens.
        counts: [R] tokens to select in each row.
        draws: [R, S] 32-bit numbers that order the units. row_draws: [R] 32-bit numbers that round.
    """
    starts = np.flatnonzero(begins | ~ordinary)
    lengths = np.diff(starts, append=ordinary.size)
    with np.errstate(divide="ignore"):
        mean = np.add.reduceat(weights.reshape(-1), starts) / lengths
        keys = -np.log((draws.reshape(-1)[starts] + 0.5) / 2**32) / mean
    row = starts // ordinary.shape[1]  # in the order of the queue, too
    queue = np.lexsort((keys, row))
    sizes = np.where(np.isfinite(keys), lengths, 0)[queue]
    before = np.cumsum(sizes) - sizes
    before -= before[np.searchsorted(row, row)]
    chosen = np.zeros(len(starts), dtype=np.bool_)
    chosen[queue] = (sizes > 0) & (before + scaled_draws(row_draws[row], sizes) < counts[row])
    return np.repeat(chosen, lengths).reshape(ordinary.shape)


def _first_units(
    is_unit: NDArray[np.bool_], sizes: NDArray[np.int64], goal: NDArray[np.int64], draws: NDArray[np.uint16]
) -> NDArray[np.bool_]:
    """The units that begin within the first `goal` [R] tokens of the units in `order`: bool [R, S].

    sizes [R, S]: tokens of the unit that begins at a slot; at least 1, except for one unit of a row.
    """
    numbers = order(draws)
    queue = np.where(is_unit, numbers, np.uint32(2**32 - 1))
    queue.sort(axis=1)
    last_goal = max(0, int(goal.max(initial=0)))
    # A unit's slot is the lower half of its order, flipped back. Slots without a unit come last. They are reached only
    # after all units are taken, so their number does not matter.
    slots = np.minimum((queue[:, : last_goal + 1] & 0xFFFF) ^ draws[:, :1], is_unit.shape[1] - 1)
    ends = np.cumsum(np.take_along_axis(sizes, slots.astype(np.int64), axis=1), axis=1)
    taken = (goal > 0) + np.count_nonzero(ends < goal[:, None], axis=1)
    last = queue[np.arange(len(queue)), np.maximum(taken, 1) - 1]
    return is_unit & (numbers <= last[:, None]) & (taken > 0)[:, None]


def _across(
    ordinary: NDArray[np.bool_], starts: NDArray[np.int64], row_draws: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """A uniform token of each non-empty row: the row, the unit's index in `starts`, the place in the unit."""
    n_ordinary = np.count_nonzero(ordinary, axis=1)
    rows = np.flatnonzero(n_ordinary)
    before = np.cumsum(n_ordinary) - n_ordinary
    token = np.flatnonzero(ordinary)[(before + scaled_draws(row_draws, n_ordinary))[rows]]
    unit = np.searchsorted(starts, token, side="right") - 1
    return rows, unit, token - starts[unit]
