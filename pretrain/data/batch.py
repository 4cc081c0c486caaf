"""The arrays of one micro-batch: a stream of N = rows * seq_len slots with documents back to back.

A row holds its documents, then its padding. The padding counts as a separate document, so attention never mixes the
two. Shapes depend only on the configuration.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrain.config import View
from pretrain.data.batch_hash import row_factors, row_hashes
from pretrain.data.packing import SPECIALS_PER_PIECE
from pretrain.data.stream import Part
from pretrain.masking import IGNORED, RowGroup, Rows, Vocabulary, concatenated_ranges
from pretrain.objectives import Objective

FLASH_TILE = 128  # slots; rounded to it, the length takes few values
_SOURCE_SHIFT = 16  # the source is in the bits above the epoch, so masks of two sources never share draws


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    seq_len: S, slots of a row.
    tokens [N] int64: ids after masking.
    positions [N] int64: position in the document, from 0.
    cu_seqlens [documents + 1] int32: where documents start and end, padding counted as documents.
    masked_positions [K], labels [K] int64: see pretrain.masking.rows.Masked.
    n_tokens, n_replaced: see LaidOut.
    weights [K] float32, groups: see pretrain.masking.rows.Masked.
    """

    seq_len: int
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    cu_seqlens: NDArray[np.int32]
    masked_positions: NDArray[np.int64]
    labels: NDArray[np.int64]
    n_tokens: int
    n_replaced: int
    weights: NDArray[np.float32] | None = None
    groups: tuple[RowGroup, ...] = ()

    def checksum(self) -> int:
        """The sum of the hashes of the rows, below 2**32 times their number; see pretrain.data.batch_hash."""
        factors = row_factors(self.seq_len)
        return sum(
            int(row_hashes(self.tokens[slots], self.masked_positions[places], self.labels[places], factors).sum())
            for _, slots, places in self.by_group()
        )

    def by_group(self) -> Iterator[tuple[RowGroup | None, slice, slice]]:
        """Each group, its slots and its places for predictions; one without a group if there is no mixture."""
        if not self.groups:
            yield None, slice(None), slice(None)
        slot = place = 0
        for group in self.groups:
            slots = group.rows * self.seq_len
            yield group, slice(slot, slot + slots), slice(place, place + group.places)
            slot, place = slot + slots, place + group.places

    @property
    def longest(self) -> int:
        """The length of the longest document, rounded up to the tiles of flash attention; at most S."""
        return min(-(-int(np.diff(self.cu_seqlens).max()) // FLASH_TILE) * FLASH_TILE, self.seq_len)

    def totals(self, objectives: int) -> tuple[list[float], list[float]]:
        """By objective: how many predictions there are, and the sum of their weights."""
        counts, weights = [0.0] * objectives, [0.0] * objectives
        for group, _, places in self.by_group():
            number = group.objective if group else 0
            counts[number] = float(np.count_nonzero(self.labels[places] != IGNORED))
            weights[number] = counts[number] if self.weights is None else float(self.weights[places].sum())
        return counts, weights

    def document_lengths(self, pad: int, view: View | None = None) -> NDArray[np.int64]:
        """Tokens of each document, specials included, padding (id `pad`) not counted.

        view: of these documents; all by default, and all if there is no mixture.
        """
        bounds = self.cu_seqlens.astype(np.int64)
        counted = self.tokens[bounds[:-1]] != pad
        if view and self.groups:
            views = np.repeat([group.view is view for group in self.groups], [group.rows for group in self.groups])
            counted &= views[bounds[:-1] // self.seq_len]
        return np.diff(bounds)[counted]


@dataclass(frozen=True)
class LaidOut:
    """Rows laid out, before masking.

    rows: R rows of S slots.
    ends [D] int64: where documents end in the stream, padding counted as documents.
    n_tokens: slots that hold a token or special token. n_replaced: tokens that replace damaged ones.
    """

    rows: Rows
    ends: NDArray[np.int64]
    n_tokens: int
    n_replaced: int

    def masked(self, objective: Objective, rate: float) -> Batch:
        """The batch of these rows with `rate` of them masked."""
        masked = objective(self.rows, rate)
        ends = self.ends if masked.order is None else self._ends_in(masked.order)
        lengths = np.diff(ends, prepend=0)
        return Batch(
            seq_len=self.rows.tokens.shape[1],
            tokens=masked.tokens,
            positions=concatenated_ranges(np.zeros(len(lengths), dtype=np.int64), lengths),
            cu_seqlens=np.concatenate([[0], ends]).astype(np.int32),
            masked_positions=masked.positions,
            labels=masked.labels,
            n_tokens=self.n_tokens,
            n_replaced=self.n_replaced,
            weights=masked.weights,
            groups=masked.groups,
        )

    def _ends_in(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where documents end when the rows are in this order."""
        seq_len = self.rows.tokens.shape[1]
        row = (self.ends - 1) // seq_len
        return np.sort(self.ends + (np.argsort(order)[row] - row) * seq_len)


def max_documents(rows: int, seq_len: int) -> int:
    """Upper bound on the documents of a stream: one-token documents, and padding in each row as one more."""
    return rows * (seq_len // (SPECIALS_PER_PIECE + 1) + 1)


def lay_out(parts: Sequence[Part], n_rows: int, seq_len: int, vocabulary: Vocabulary) -> LaidOut:
    """Lay rows out as [CLS] piece [SEP] [CLS] piece [SEP] ... padding; missing rows, up to `n_rows`, become padding."""
    tokens = np.full(n_rows * seq_len, vocabulary.pad, dtype=np.int64)
    flags = np.zeros(n_rows * seq_len, dtype=np.uint8)
    row_ids = np.zeros((n_rows, 3), dtype=np.int64)
    ends, filled = [], np.zeros(n_rows, dtype=np.int64)
    row = n_replaced = 0
    for part in parts:
        starts, lengths, counts = part.window.pieces(part.numbers)
        sizes = lengths + SPECIALS_PER_PIECE
        before = np.cumsum(sizes) - sizes
        first = np.cumsum(counts) - counts
        numbers = np.arange(row, row + len(part))
        slots = before - np.repeat(before[first] - numbers * seq_len, counts)
        pieces, replaced = part.window.tokens(starts, lengths)
        tokens[slots] = vocabulary.cls
        inside = concatenated_ranges(slots + 1, lengths)
        tokens[inside] = pieces.tokens
        if pieces.flags is not None:
            flags[inside] = pieces.flags
        tokens[slots + 1 + lengths] = vocabulary.sep
        row_ids[numbers, 0] = part.source << _SOURCE_SHIFT | part.epoch
        row_ids[numbers, 1] = part.window_number
        row_ids[numbers, 2] = part.numbers
        ends.append(slots + sizes)
        filled[numbers] = np.add.reduceat(sizes, first)
        row, n_replaced = row + len(part), n_replaced + replaced
    padded = np.flatnonzero(filled < seq_len)
    ends.append((padded + 1) * seq_len)
    return LaidOut(
        Rows(tokens.reshape(n_rows, seq_len), row_ids, flags.reshape(n_rows, seq_len)),
        np.sort(np.concatenate(ends), kind="stable"),
        int(filled.sum()),
        n_replaced,
    )
