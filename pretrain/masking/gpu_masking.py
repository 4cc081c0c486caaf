"""Masking on the training device: one Triton kernel draws, selects, replaces, labels and compacts.

Its results equal MaskedTokens's (masked_tokens.py) bit for bit. The host cuts rows into units
(MaskedTokens.units); where units are single tokens, as in BERT, the kernel needs only the tokens. One program masks one
row. No shape and no launch depends on data, and nothing waits for the device.

The kernel computes the same as the reference in another form:

- Draws. Column c of a row is a 16-bit piece of counter c // 8 (pretrain.masking.selection). So a program runs Philox
  once per eight columns and distributes the pieces.
- Order. The key of a unit is the key of its first token. A running maximum of (column, draw) copies it to the others.
- Selection. The reference sorts the units and takes a unit if fewer tokens than requested precede it. That number grows
  with the key, so the selected units are those up to a largest key, which is found bit by bit.
- The unit across the circle's beginning is not part of this count; it is decided separately.
"""

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from pretrain.masking.masked_tokens import FATE_BEGINS, UNIT_BEGINS, MaskedTokens
from pretrain.masking.rows import IGNORED

_TOKENS_OF_A_WARP = 256
_MOST_THREADS = 1024  # of a program, on all GPUs

# The only globals that the kernel reads.
_UNIT_BEGINS = tl.constexpr(UNIT_BEGINS)
_FATE_BEGINS = tl.constexpr(FATE_BEGINS)
_IGNORED = tl.constexpr(IGNORED)


class DeviceMasked(NamedTuple):
    """A masked stream on the device; see pretrain.masking.rows.Masked."""

    tokens: Tensor
    positions: Tensor
    labels: Tensor


class DeviceMasking:
    """MaskedTokens for tensors on a device.

    A call launches one kernel on the current stream. The first call with a new shape compiles the kernel; this takes
    seconds and must precede the capture of a CUDA graph. Under TRITON_INTERPRET=1 it runs on a CPU. Rows of up to 8,192
    slots fit on GPUs with 64 KiB of shared memory per program; rows of 16,384 need up to 128 KiB.

    Args:
        objective: the masking to compute.
        device: the device of the tensors: the current CUDA device.
    """

    def __init__(self, objective: MaskedTokens, device: torch.device):
        vocabulary = objective.vocabulary
        self._objective = objective
        # One table holds whether an id is ordinary and its rank among ordinary ids.
        ranks = np.where(vocabulary.is_ordinary, vocabulary.rank, -1).astype(np.int32)
        self._ranks = torch.from_numpy(ranks).to(device)
        self._ordinary_ids = torch.from_numpy(vocabulary.ordinary_ids.astype(np.int32)).to(device)
        self._key = objective.key[0] | objective.key[1] << 32

    def empty(self, n_rows: int, seq_len: int) -> DeviceMasked:
        """Allocate uninitialised memory for the result of a call."""
        slots = self._objective.slots(seq_len)
        tokens, positions, labels = (
            torch.empty(size, dtype=torch.int64, device=self._ranks.device)
            for size in (n_rows * seq_len, n_rows * slots, n_rows * slots)
        )
        return DeviceMasked(tokens, positions, labels)

    def __call__(
        self, tokens: Tensor, units: Tensor | None, row_ids: Tensor, rate: Tensor, out: DeviceMasked | None = None
    ) -> DeviceMasked:
        """Mask rows.

        Args:
            tokens: [R, S] int64, every id within the vocabulary.
            units: [R, S] uint8, Units.bits of MaskedTokens.units, or None if it returns None.
            row_ids: [R, 3] int64, see pretrain.masking.rows.Rows.
            rate: [1] int64, pretrain.masking.selection.fixed of the rate, at most the objective's. It is a tensor so
                that a captured CUDA graph can use another rate: change it with `fill_`, which does not wait.
            out: output tensors from `empty`; new memory by default.

        Raises:
            ValueError: if a tensor has another shape or type or is not contiguous, or if rows are too long.
        """
        n_rows, seq_len = tokens.shape
        slots = self._objective.slots(seq_len)
        out = out or self.empty(n_rows, seq_len)
        if (units is None) != self._objective.by_token:
            raise ValueError("units must be None if each token is a unit, and a tensor otherwise")
        if seq_len > row_limit():
            raise ValueError(f"rows have {seq_len} slots; the kernel masks rows of {row_limit()} at most")
        _check("tokens", tokens, n_rows, seq_len)
        _check("units", units, n_rows, seq_len, dtype=torch.uint8)
        _check("row_ids", row_ids, n_rows, 3)
        _check("rate", rate, 1)
        for name, tensor, places_of_row in zip(DeviceMasked._fields, out, (seq_len, slots, slots), strict=True):
            _check(f"out.{name}", tensor, n_rows * places_of_row)
        to_mask, to_random = self._objective.replacement.bounds
        mask_row[(n_rows,)](
            tokens,
            units,
            row_ids,
            rate,
            self._ranks,
            self._ordinary_ids,
            out.tokens,
            out.positions,
            out.labels,
            self._key,
            to_mask,
            to_random,
            self._objective.vocabulary.mask,
            len(self._ordinary_ids) - 1,
            **launch_sizes(seq_len, slots),
        )
        return out


def row_limit() -> int:
    """Slots of the longest row that the kernel masks. It depends on a program's shared memory: 64 KiB on AMD."""
    return 1 << (13 if torch.version.hip else 14)


def launch_sizes(seq_len: int, slots: int) -> dict[str, int]:
    """The kernel's constants for rows of `seq_len` slots with `slots` places for predictions."""
    block = max(triton.next_power_of_2(seq_len), 32)
    lanes = 64 if torch.version.hip else 32  # of a warp; AMD's data centre GPUs have 64
    return {
        "SEQ_LEN": seq_len,
        "SLOTS": slots,
        "BLOCK": block,
        "COUNTERS": triton.next_power_of_2(triton.cdiv(seq_len % 8 + 3 * slots + 2, 8)),
        "PLACES": triton.next_power_of_2(max(slots, 1)),
        "num_warps": min(max(block // _TOKENS_OF_A_WARP, 1), _MOST_THREADS // lanes),
    }


def _check(name: str, tensor: Tensor | None, *shape: int, dtype: torch.dtype = torch.int64) -> None:
    if tensor is None:
        return
    if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        found = f"{tensor.dtype} {list(tensor.shape)}{'' if tensor.is_contiguous() else ', not contiguous'}"
        raise ValueError(f"{name} must be contiguous {dtype} {list(shape)}, but is {found}")


# Numbers are not specialised on their values, so another seed or share does not recompile the kernel.
@triton.jit(do_not_specialize=["key", "to_mask", "to_random", "mask_id", "n_others"])
def mask_row(
    tokens,  # [R, SEQ_LEN] int64
    units,  # [R, SEQ_LEN] uint8, or None
    row_ids,  # [R, 3] int64
    rate,  # [1] int64
    ranks,  # [size of the vocabulary] int32: index into ordinary_ids, -1 for special ids
    ordinary_ids,  # [n_others + 1] int32
    seen,  # out: [R, SEQ_LEN] int64
    positions,  # out: [R, SLOTS] int64
    labels,  # out: [R, SLOTS] int64
    key: tl.uint64,
    to_mask: tl.int32,
    to_random: tl.int32,
    mask_id: tl.int32,
    n_others: tl.int32,
    SEQ_LEN: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,  # a power of two, at least SEQ_LEN
    COUNTERS: tl.constexpr,  # a power of two: counters of the draws after the SEQ_LEN slot draws
    PLACES: tl.constexpr,  # a power of two, at least SLOTS
):
    """Mask the row of this program."""
    row = tl.program_id(0).to(tl.int64)
    c3 = tl.load(row_ids + 3 * row).to(tl.uint32)
    c2 = tl.load(row_ids + 3 * row + 1).to(tl.uint32)
    c1 = tl.load(row_ids + 3 * row + 2).to(tl.uint32)
    column = tl.arange(0, BLOCK)
    inside = column < SEQ_LEN
    token = tl.load(tokens + row * SEQ_LEN + column, mask=inside, other=0)
    rank = tl.load(ranks + token, mask=inside, other=-1)
    ordinary = rank >= 0
    n_ordinary = tl.sum(ordinary.to(tl.int32))
    count = ((tl.load(rate) * n_ordinary + (1 << 31)) >> 32).to(tl.int32)

    slot_words = counter_words(key, tl.arange(0, BLOCK // 8), c1, c2, c3)
    draw = tl.interleave(slot_words & 0xFFFF, slot_words >> 16)
    flip = _at(draw, 0)
    # The other draws begin at column SEQ_LEN, which is column SEQ_LEN % 8 of these.
    words = counter_words(key, SEQ_LEN // 8 + tl.arange(0, COUNTERS), c1, c2, c3)
    fates: tl.constexpr = SEQ_LEN % 8
    picks: tl.constexpr = fates + SLOTS
    turns: tl.constexpr = picks + 2 * SLOTS

    if units is None:
        lag = tl.zeros((BLOCK,), tl.int32)
        selected = _first((draw << 16) | (column.to(tl.uint32) ^ flip), ordinary, count)
    else:
        bits = tl.load(units + row * SEQ_LEN + column, mask=inside, other=0)
        # Units and fates restart after special tokens, so the result below is correct for all ordinary tokens.
        opens = _last((bits & _UNIT_BEGINS) != 0, (column.to(tl.uint32) << 16) | draw)
        start = opens >> 16  # the slot of the unit's first token
        lag = column - _last((bits & _FATE_BEGINS) != 0, column.to(tl.uint32)).to(tl.int32)
        turn = _half(_at(words, turns // 2), turns % 2) | (
            _half(_at(words, turns // 2 + turns % 2), 1 - turns % 2) << 16
        )
        beginning = tl.umulhi(turn, n_ordinary.to(tl.uint32)).to(tl.int32)  # token number at the circle's beginning
        begins = ordinary & (tl.cumsum(ordinary.to(tl.int32), 0) - 1 == beginning)
        across = tl.sum(tl.where(begins, start, 0))  # the start of the unit across it
        offset = tl.sum(tl.where(begins, column - start.to(tl.int32), 0))
        rest = tl.sum((ordinary & (start == across)).to(tl.int32)) - offset
        before = tl.where(
            offset == 0, 0, n_ordinary - offset
        )  # tokens between the circle's beginning and the unit's start
        others = _first(((opens & 0xFFFF) << 16) | (start ^ flip), ordinary & (start != across), count - rest)
        selected = others | (ordinary & (start == across) & (before < count))

    number = tl.cumsum(selected.to(tl.int32), 0) - 1  # index of a selected token among the row's predictions
    n_selected = tl.sum(selected.to(tl.int32))
    # Only a rate above the objective's can select more tokens than places; this guard keeps memory safe then.
    selected = selected & (number < SLOTS)

    mine = tl.where(selected, number, 0)
    fate = _number(words, fates + mine - tl.where(selected, lag, 0)).to(tl.int32)
    pick = _number(words, picks + 2 * mine) | (_number(words, picks + 2 * mine + 1) << 16)
    other = tl.umulhi(pick, n_others.to(tl.uint32)).to(tl.int32)
    other += (other >= rank).to(tl.int32)  # skip the original
    is_random = selected & (fate >= to_mask) & (fate < to_random)
    random = tl.load(ordinary_ids + other, mask=is_random, other=0).to(tl.int64)
    after = tl.where(is_random, random, tl.where(selected & (fate < to_mask), mask_id.to(tl.int64), token))
    tl.store(seen + row * SEQ_LEN + column, after, mask=inside)

    # Used and unused places have different addresses, so the order of these stores does not matter.
    tl.store(positions + row * SLOTS + number, row * SEQ_LEN + column, mask=selected)
    tl.store(labels + row * SLOTS + number, token, mask=selected)
    place = tl.arange(0, PLACES)
    unused = (place >= n_selected) & (place < SLOTS)
    tl.store(positions + row * SLOTS + place, row * SEQ_LEN + tl.zeros((PLACES,), tl.int64), mask=unused)
    tl.store(labels + row * SLOTS + place, tl.full((PLACES,), _IGNORED, tl.int64), mask=unused)


@triton.jit
def counter_words(key, counters, c1, c2, c3):
    """The four words of each counter [C], concatenated: uint32 [4 * C]."""
    w0, w1, w2, w3 = tl.philox(key, counters, c1, c2, c3, n_rounds=10)
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


@triton.jit
def _number(words, columns):
    """The 16-bit numbers of columns [B]; each word holds two: uint32 [B]."""
    return _half(tl.gather(words, columns >> 1, 0), (columns & 1).to(tl.uint32))


@triton.jit
def _half(word, which):
    """The lower (0) or upper (1) half of a word."""
    return (word >> (which * 16)) & 0xFFFF


@triton.jit
def _at(values, place: tl.constexpr):
    """One of the values uint32 [B]."""
    return tl.sum(tl.where(tl.arange(0, values.shape[0]) == place, values, 0))


@triton.jit
def _last(begins, values):
    """The latest value with `begins` true at or before each place, 0 if none; values uint32 [B] increase."""
    return tl.associative_scan(tl.where(begins, values, 0), 0, _larger)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _first(keys, candidates, goal):
    """Select each candidate with fewer than `goal` candidates of smaller key, uint32 [B]: bool [B]."""
    last = tl.full((), 0, tl.uint32)  # the largest key with this property, built from its highest bit down
    bit = tl.full((), 1 << 31, tl.uint32)
    for _ in range(32):
        before = tl.sum((candidates & (keys < (last | bit))).to(tl.int32))
        last = tl.where(before < goal, last | bit, last)
        bit = bit >> 1
    return candidates & (keys <= last) & (goal > 0)
